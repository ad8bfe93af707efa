import com.openai.client.OpenAIClient;
import com.openai.core.JsonValue;
import com.openai.errors.BadRequestException;
import com.openai.errors.InternalServerException;
import com.openai.errors.NotFoundException;
import com.openai.errors.OpenAIIoException;
import com.openai.errors.OpenAIServiceException;
import com.openai.errors.PermissionDeniedException;
import com.openai.errors.RateLimitException;
import com.openai.errors.UnauthorizedException;
import com.openai.errors.UnexpectedStatusCodeException;
import com.openai.errors.UnprocessableEntityException;
import com.openai.models.completions.CompletionCreateParams;
import java.util.UUID;

/** Errors as the SDK's exceptions, with param, type and code; and its retries. */
final class Failures {
    private static final OpenAIClient CLIENT = Check.client("default", "", "any", 0);

    static void run() throws Exception {
        Check.check("errors of the server: 400, 401, 403, 404, with param, type and code", Failures::own);
        Check.check("every exception class by its status", Failures::classes);
        Check.check("retries: 429 twice with retry-after-ms, counted in the header", () -> retried("retry", "0", "1", "2"));
        Check.check("retries: 503 with Retry-After", () -> retried("busy", "0", "1"));
        Check.check("no retry where x-should-retry is false", Failures::notRetried);
        Check.check("a server that is not there", Failures::unreachable);
    }

    private static void create(OpenAIClient client, CompletionCreateParams.Builder params) {
        client.completions().create(params.build());
    }

    private static void own() {
        OpenAIServiceException bad =
                Check.raises(BadRequestException.class, () -> create(CLIENT, Answers.greedy().temperature(9.0)));
        Check.require(bad.statusCode() == 400 && bad.param().get().equals("temperature"), bad);
        Check.require(bad.type().get().equals("invalid_request_error") && bad.code().isPresent(), bad);
        Check.require(bad.headers().values("x-request-id").get(0).startsWith("req_"), bad.headers());
        Check.raises(BadRequestException.class,
                () -> create(CLIENT, Answers.greedy().putAdditionalBodyProperty("foo", JsonValue.from(1))));
        OpenAIServiceException missing =
                Check.raises(NotFoundException.class, () -> create(CLIENT, Answers.greedy().model("nope")));
        Check.require(missing.code().get().equals("model_not_found"), missing);
        OpenAIServiceException stranger = Check.raises(UnauthorizedException.class,
                () -> create(Check.client("keyed", "", "wrong", 0), Answers.greedy()));
        Check.require(stranger.code().get().equals("invalid_api_key"), stranger);
        create(Check.client("keyed", "", System.getenv("ONWARD_CLIENT_KEY"), 0), Answers.greedy());
        Check.raises(PermissionDeniedException.class, () -> create(CLIENT,
                Answers.greedy().putAdditionalHeader("Origin", "https://elsewhere.example")));
    }

    private static void classes() {
        status(400, BadRequestException.class);
        status(401, UnauthorizedException.class);
        status(403, PermissionDeniedException.class);
        status(404, NotFoundException.class);
        status(413, UnexpectedStatusCodeException.class);
        status(422, UnprocessableEntityException.class);
        status(429, RateLimitException.class);
        status(500, InternalServerException.class);
        status(503, InternalServerException.class);
    }

    private static void status(int status, Class<? extends OpenAIServiceException> kind) {
        OpenAIServiceException problem = Check.raises(kind,
                () -> create(Check.client("faults", "/status/" + status, "any", 2), Answers.greedy()));
        Check.require(problem.statusCode() == status && problem.code().get().equals("on_purpose"), problem);
        Check.require(problem.param().get().equals("prompt") && problem.type().get().equals("test_error"), problem);
    }

    private static void retried(String fault, String... counters) throws Exception {
        String name = UUID.randomUUID().toString();
        create(Check.client("faults", "/" + fault + "/" + name, "any", 2), Answers.greedy());
        String seen = Check.get(Check.URLS.get("faults") + "/seen/" + name);
        Check.require(seen.equals("[\"" + String.join("\", \"", counters) + "\"]"), seen);
    }

    private static void notRetried() throws Exception {
        String name = UUID.randomUUID().toString();
        Check.raises(RateLimitException.class,
                () -> create(Check.client("faults", "/stop/" + name, "any", 2), Answers.greedy()));
        Check.require(Check.get(Check.URLS.get("faults") + "/seen/" + name).equals("[\"0\"]"), name);
    }

    private static void unreachable() {
        OpenAIClient nobody = com.openai.client.okhttp.OpenAIOkHttpClient.builder()
                .baseUrl("http://127.0.0.1:1/v1").apiKey("any").maxRetries(0).build();
        Check.raises(OpenAIIoException.class, () -> create(nobody, Answers.greedy()));
    }
}
