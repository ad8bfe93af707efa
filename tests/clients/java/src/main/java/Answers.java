import com.openai.client.OpenAIClient;
import com.openai.core.JsonValue;
import com.openai.core.RequestOptions;
import com.openai.models.completions.Completion;
import com.openai.models.completions.CompletionChoice;
import com.openai.models.completions.CompletionCreateParams;
import com.openai.models.completions.CompletionUsage;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** Whole completions: every form of the prompt, every parameter, every getter. */
final class Answers {
    private static final OpenAIClient CLIENT = Check.client("default", "", "any", 0);
    private static final RequestOptions STRICT = RequestOptions.builder().responseValidation(true).build();

    static CompletionCreateParams.Builder greedy() {
        return CompletionCreateParams.builder().model("toy").prompt(Check.PROMPT).temperature(0.0).maxTokens(12);
    }

    static void run() throws Exception {
        Check.check("text: every getter, validated, without unknown fields", Answers::text);
        Check.check("token ids, lists of texts and of token ids", Answers::prompts);
        Check.check("n and best_of", Answers::choices);
        Check.check("logprobs: every getter, validated", () -> logprobs(false));
        Check.check("echo with logprobs: the first entries are null", () -> logprobs(true));
        Check.check("suffix, stop and every other parameter", Answers::parameters);
        Check.check("finish reasons are those of the enumeration", Answers::finishReasons);
        Check.check("a batch of 256 prompts, in order", Answers::batch);
        Check.check("asynchronous", Answers::asynchronous);
        Check.check("models; OpenAI's names are constants of the SDK", Answers::models);
    }

    private static Completion create(CompletionCreateParams.Builder params) {
        return CLIENT.completions().create(params.build(), STRICT).validate();
    }

    private static void text() {
        Completion completion = create(greedy());
        Check.require(completion.id().startsWith("cmpl-") && completion.created() > 0, completion);
        Check.require(completion.model().equals("toy") && completion.systemFingerprint().isPresent(), completion);
        Check.require(completion._object_().equals(JsonValue.from("text_completion")), completion);
        CompletionUsage usage = completion.usage().get();
        Check.require(usage.promptTokens() == 17 && usage.completionTokens() <= 12, usage);
        Check.require(usage.totalTokens() == usage.promptTokens() + usage.completionTokens(), usage);
        Check.require(usage.isValid() && usage._additionalProperties().isEmpty(), usage);
        usage.promptTokensDetails().ifPresent(details -> {
            LongStream.of(details.cachedTokens().orElse(0L), details.audioTokens().orElse(0L),
                    details.textTokens().orElse(0L), details.imageTokens().orElse(0L),
                    details.cacheWriteTokens().orElse(0L)).forEach(count -> Check.require(count >= 0, details));
            Check.require(details.isValid() && details._additionalProperties().isEmpty(), details);
        });
        usage.completionTokensDetails().ifPresent(details -> {
            LongStream.of(details.acceptedPredictionTokens().orElse(0L), details.audioTokens().orElse(0L),
                    details.rejectedPredictionTokens().orElse(0L), details.reasoningTokens().orElse(0L),
                    details.textTokens().orElse(0L)).forEach(count -> Check.require(count >= 0, details));
            Check.require(details.isValid() && details._additionalProperties().isEmpty(), details);
        });
        CompletionChoice choice = completion.choices().get(0);
        Check.require(choice.index() == 0 && !choice.text().isEmpty() && choice.logprobs().isEmpty(), choice);
        Check.require(choice._additionalProperties().isEmpty(), choice);
        Check.require(completion._additionalProperties().isEmpty(), completion);
    }

    private static void prompts() {
        Completion text = create(greedy().prompt("ab"));
        Completion ids = create(greedy().promptOfArrayOfTokens(List.of(97L, 98L)));
        Check.require(texts(ids).equals(texts(text)), ids);
        Completion texts = create(greedy().promptOfArrayOfStrings(List.of("ab", "Say")));
        Completion lists = create(greedy().promptOfArrayOfTokenArrays(List.of(List.of(97L, 98L), List.of(83L, 97L, 121L))));
        Check.require(texts.choices().size() == 2 && texts(texts).get(0).equals(texts(text).get(0)), texts);
        Check.require(texts(lists).equals(texts(texts)), lists);
    }

    private static void choices() {
        Completion completion = create(greedy().n(2).bestOf(4).seed(7).temperature(1.0));
        Check.require(completion.choices().size() == 2 && completion.choices().get(1).index() == 1, completion);
        Check.require(texts(create(greedy().n(2).bestOf(4).seed(7).temperature(1.0))).equals(texts(completion)), "seed");
    }

    /** Echoed prompts begin with a null log probability, on which the SDK's validation fails, as it does on OpenAI's. */
    private static void logprobs(boolean echo) {
        CompletionCreateParams params = greedy().logprobs(2).echo(echo).build();
        Completion completion = CLIENT.completions().create(params);
        if (!echo) completion.validate();
        CompletionChoice choice = completion.choices().get(0);
        CompletionChoice.Logprobs logprobs = choice.logprobs().get();
        List<String> tokens = logprobs.tokens().get();
        int first = echo ? 1 : 0;
        Check.require(choice.text().startsWith(Check.PROMPT) == echo, choice);
        Check.require(logprobs.textOffset().get().get(0) == (echo ? 0 : Check.PROMPT.length()), logprobs);
        Check.require(logprobs.textOffset().get().size() == tokens.size(), logprobs);
        Check.require(logprobs.tokenLogprobs().get().size() == tokens.size(), logprobs);
        Check.require(logprobs.topLogprobs().get().size() == tokens.size(), logprobs);
        if (echo) Check.require(logprobs.tokenLogprobs().get().get(0) == null, logprobs);
        for (int place = first; place < tokens.size(); place++) {
            Check.require(logprobs.tokenLogprobs().get().get(place) <= 0, logprobs);
            JsonValue own = logprobs.topLogprobs().get().get(place)._additionalProperties().get(tokens.get(place));
            Check.require(own.convert(Double.class).equals(logprobs.tokenLogprobs().get().get(place)), logprobs);
        }
        Check.require(logprobs._additionalProperties().isEmpty(), logprobs);
    }

    private static void parameters() {
        CompletionCreateParams.LogitBias bias =
                CompletionCreateParams.LogitBias.builder().putAdditionalProperty("50", JsonValue.from(-100)).build();
        Completion completion = create(greedy().suffix(" end").stop("\n\n\n").user("u").topP(0.9).seed(1).logitBias(bias)
                .presencePenalty(0.1).frequencyPenalty(0.1).putAdditionalBodyProperty("top_k", JsonValue.from(5)));
        Check.require(completion.usage().get().promptTokens() > 17, completion);
        create(greedy().stopOfStrings(List.of("one", "two", "three", "four")));
    }

    private static void finishReasons() {
        CompletionChoice cut = create(greedy()).choices().get(0);
        Check.require(cut.finishReason().known() == CompletionChoice.FinishReason.Known.LENGTH, cut);
        Check.require(cut.finishReason().equals(CompletionChoice.FinishReason.LENGTH), cut);
        CompletionChoice stopped = create(greedy().stop(cut.text().substring(2, 3))).choices().get(0);
        Check.require(stopped.finishReason().value() == CompletionChoice.FinishReason.Value.STOP, stopped);
        Check.require(cut.text().startsWith(stopped.text()) && stopped.text().length() <= 2, stopped);
        Check.require(stopped.finishReason().asString().equals("stop") && stopped.finishReason().isValid(), stopped);
    }

    private static void batch() {
        List<String> prompts = IntStream.range(0, 256).mapToObj(number -> "prompt " + number).collect(Collectors.toList());
        Completion completion = create(greedy().promptOfArrayOfStrings(prompts).maxTokens(4));
        Check.require(completion.choices().size() == 256, completion.choices().size());
        for (int place = 0; place < 256; place++)
            Check.require(completion.choices().get(place).index() == place, completion.choices().get(place));
        for (int place : new int[] {0, 100, 255}) {
            Completion alone = create(greedy().prompt(prompts.get(place)).maxTokens(4));
            Check.require(texts(alone).get(0).equals(texts(completion).get(place)), place);
        }
    }

    private static void asynchronous() throws Exception {
        Completion completion = CLIENT.async().completions().create(greedy().build()).get();
        Check.require(texts(completion.validate()).equals(texts(create(greedy()))), completion);
    }

    private static void models() {
        List<String> ids = CLIENT.models().list().data().stream().map(model -> model.validate().id()).toList();
        Check.require(ids.contains("toy") && ids.contains("davinci-002"), ids);
        Check.require(CLIENT.models().retrieve("toy").validate().ownedBy().equals("onward"), ids);
        for (CompletionCreateParams.Model name : List.of(CompletionCreateParams.Model.GPT_3_5_TURBO_INSTRUCT,
                CompletionCreateParams.Model.DAVINCI_002, CompletionCreateParams.Model.BABBAGE_002))
            Check.require(create(greedy().model(name)).model().equals("toy"), name);
    }

    static List<String> texts(Completion completion) {
        return completion.choices().stream().map(CompletionChoice::text).collect(Collectors.toList());
    }
}
