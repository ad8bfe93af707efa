import com.openai.client.OpenAIClient;
import com.openai.core.http.AsyncStreamResponse;
import com.openai.core.http.StreamResponse;
import com.openai.errors.OpenAIIoException;
import com.openai.errors.SseException;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.completions.Completion;
import com.openai.models.completions.CompletionCreateParams;
import com.openai.models.completions.CompletionUsage;
import java.util.Iterator;
import java.util.List;
import java.util.stream.Collectors;

/** Streams: blocking and asynchronous, cancelled, and broken. */
final class Streams {
    private static final OpenAIClient CLIENT = Check.client("default", "", "any", 0);

    static void run() throws Exception {
        Check.check("a stream with usage is the whole answer", Streams::whole);
        Check.check("n choices in a stream", Streams::choices);
        Check.check("an asynchronous stream", Streams::asynchronous);
        Check.check("a closed stream ends its work on the server", Streams::cancel);
        Check.check("an error in the middle of a stream, and a lost connection, are thrown", Streams::broken);
    }

    private static CompletionCreateParams.Builder withUsage() {
        return Answers.greedy().streamOptions(ChatCompletionStreamOptions.builder().includeUsage(true).build());
    }

    private static List<Completion> chunks(OpenAIClient client, CompletionCreateParams params) {
        try (StreamResponse<Completion> stream = client.completions().createStreaming(params)) {
            return stream.stream().collect(Collectors.toList());
        }
    }

    /** Chunks before a choice's last one have the finish reason null, which `validate` and the getter refuse. */
    private static String joined(List<Completion> chunks, long index) {
        return chunks.stream().flatMap(chunk -> chunk.choices().stream()).filter(choice -> choice.index() == index)
                .map(choice -> {
                    choice._finishReason().asKnown().ifPresent(reason -> reason.validate());
                    return choice.text();
                }).collect(Collectors.joining());
    }

    private static void whole() {
        Completion completion = CLIENT.completions().create(Answers.greedy().build());
        List<Completion> chunks = chunks(CLIENT, withUsage().build());
        Check.require(joined(chunks, 0).equals(Answers.texts(completion).get(0)), chunks);
        Completion last = chunks.get(chunks.size() - 1).validate();
        CompletionUsage usage = last.usage().get();
        Check.require(last.choices().isEmpty(), last);
        Check.require(usage.completionTokens() == completion.usage().get().completionTokens(), usage);
        Check.require(chunks.stream().map(Completion::id).distinct().count() == 1, chunks);
        Check.require(chunks.stream().allMatch(chunk -> chunk._additionalProperties().isEmpty()), chunks);
    }

    private static void choices() {
        CompletionCreateParams.Builder params = Answers.greedy().n(3).seed(3).temperature(1.0);
        List<String> whole = Answers.texts(CLIENT.completions().create(params.build()));
        List<Completion> chunks = chunks(CLIENT, params.build());
        for (int index = 0; index < 3; index++) Check.require(joined(chunks, index).equals(whole.get(index)), index);
    }

    private static void asynchronous() throws Exception {
        StringBuilder text = new StringBuilder();
        AsyncStreamResponse<Completion> stream = CLIENT.async().completions().createStreaming(Answers.greedy().build());
        stream.subscribe(chunk -> chunk.choices().forEach(choice -> text.append(choice.text()))).onCompleteFuture().get();
        Check.require(text.toString().equals(joined(chunks(CLIENT, Answers.greedy().build()), 0)), text);
    }

    private static void cancel() throws Exception {
        CompletionCreateParams params = Answers.greedy().maxTokens(1900)
                .putAdditionalBodyProperty("ignore_eos", com.openai.core.JsonValue.from(true)).n(16).build();
        try (StreamResponse<Completion> stream = CLIENT.completions().createStreaming(params)) {
            Iterator<Completion> chunks = stream.stream().iterator();
            for (int seen = 0; seen < 3; seen++) chunks.next();
        }
        Check.waitUntilIdle();
        CLIENT.async().completions().createStreaming(params).close();
        Check.waitUntilIdle();
    }

    private static void broken() {
        CompletionCreateParams params = Answers.greedy().maxTokens(999).build();
        SseException problem = Check.raises(SseException.class,
                () -> chunks(Check.client("faults", "/error/x", "any", 0), params));
        Check.require(String.valueOf(problem.body()).contains("broke"), problem.body());
        Check.raises(OpenAIIoException.class, () -> chunks(Check.client("faults", "/cut/x", "any", 0), params));
    }
}
