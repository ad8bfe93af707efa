import com.fasterxml.jackson.databind.ObjectMapper;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Pattern;

/** The servers, and the results of checks, each printed as a line of JSON that tests/clients/report.py reads. */
final class Check {
    static final Map<String, String> URLS = readUrls();
    static final String PROMPT = "Say this is a test";
    static int failed = 0;

    interface Body {
        void run() throws Exception;
    }

    static void check(String name, Body body) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("check", name);
        try {
            body.run();
            result.put("ok", true);
        } catch (Throwable problem) {
            failed += 1;
            StringWriter trace = new StringWriter();
            problem.printStackTrace(new PrintWriter(trace));
            result.put("ok", false);
            result.put("detail", trace.toString());
        }
        System.out.println(new ObjectMapper().writeValueAsString(result));
    }

    static void require(boolean holds, Object detail) {
        if (!holds) throw new AssertionError(String.valueOf(detail));
    }

    /** Returns what `body` throws, which must be of exactly this class. */
    static <E extends Throwable> E raises(Class<E> kind, Body body) {
        try {
            body.run();
        } catch (Throwable problem) {
            require(problem.getClass() == kind, problem);
            return kind.cast(problem);
        }
        throw new AssertionError("no " + kind.getSimpleName() + " was thrown");
    }

    /** A client of a server, without retries. `path` is what comes before /v1. */
    static OpenAIClient client(String server, String path, String key, int retries) {
        return OpenAIOkHttpClient.builder()
                .baseUrl(URLS.get(server) + path + "/v1").apiKey(key).maxRetries(retries).build();
    }

    static String get(String url) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url)).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    }

    /** Waits until the server computes nothing, as it must soon after a client has left. */
    static void waitUntilIdle() throws Exception {
        Pattern idle = Pattern.compile("^onward_engine_running\\{model=\"toy\"\\} 0(\\.0)?$", Pattern.MULTILINE);
        for (int attempt = 0; attempt < 1000; attempt++) {
            if (idle.matcher(get(URLS.get("default") + "/metrics")).find()) return;
            Thread.sleep(10);
        }
        throw new AssertionError("the server still works for a client that has left");
    }

    @SuppressWarnings("unchecked")
    private static Map<String, String> readUrls() {
        try {
            return new ObjectMapper().readValue(System.getenv("ONWARD_CLIENT_URLS"), Map.class);
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }
}
