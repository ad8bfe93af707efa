// A JVM's view of a stream: lines, [DONE], and the end of the body, which the Java SDK waits for.
// Prints "events N, text M characters, end K ms after [DONE]"; any surprise is an exception.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Iterator;

public class Sse {
    public static void main(String[] arguments) throws Exception {
        String body = "{\"model\":\"toy\",\"prompt\":\"naïve 🙂\",\"stream\":true,\"max_tokens\":40,\"ignore_eos\":true}";
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0] + "/v1/completions"))
            .header("Content-Type", "application/json")
            .header("Accept", "text/event-stream")
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.valueOf(arguments[1])).build();
        HttpResponse<java.util.stream.Stream<String>> response =
            client.send(request, HttpResponse.BodyHandlers.ofLines());
        if (response.statusCode() != 200) throw new IllegalStateException("status " + response.statusCode());
        int events = 0;
        long done = 0;
        for (Iterator<String> lines = response.body().iterator(); lines.hasNext(); ) {
            String line = lines.next();
            if (line.isEmpty() || line.startsWith(":")) continue;
            if (!line.startsWith("data: ")) throw new IllegalStateException("line " + line);
            if (line.equals("data: [DONE]")) done = System.nanoTime();
            else if (line.contains("\"error\"")) throw new IllegalStateException("error key in " + line);
            else events++;
        }
        if (done == 0) throw new IllegalStateException("no [DONE]");
        long late = (System.nanoTime() - done) / 1_000_000;
        if (late > 200) throw new IllegalStateException("the body ended " + late + " ms after [DONE]");
        System.out.println("events " + events + ", end " + late + " ms after [DONE]");
    }
}
