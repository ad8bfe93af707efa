# frozen_string_literal: true

# openai for Ruby: whole completions, streams, errors, retries. Its arguments are folders to load libraries from.
$LOAD_PATH.unshift(*ARGV)
require "json"
require "net/http"
require "openai"
require "securerandom"
require "set"

URLS = JSON.parse(ENV.fetch("ONWARD_CLIENT_URLS"))
PROMPT = "Say this is a test"
GREEDY = {model: "toy", prompt: PROMPT, temperature: 0, max_tokens: 12}.freeze
$failed = false

def check(name)
  yield
  puts JSON.generate({check: name, ok: true})
rescue StandardError => e
  $failed = true
  puts JSON.generate({check: name, ok: false, detail: e.full_message(highlight: false)})
ensure
  $stdout.flush
end

def assert(holds, detail = nil)
  raise "assertion failed: #{detail.inspect}" unless holds
end

def client(server = "default", path: "", key: "any", retries: 0)
  OpenAI::Client.new(base_url: "#{URLS[server]}#{path}/v1", api_key: key, max_retries: retries)
end

def create(from = client, **fields)
  from.completions.create(**GREEDY, **fields)
end

def texts(completion)
  completion.choices.map(&:text)
end

def get(url)
  Net::HTTP.get(URI(url))
end

# Returns the error that the block must raise, of exactly this class.
def refused(kind)
  yield
rescue OpenAI::Errors::Error => e
  assert(e.instance_of?(kind), e)
  e
else
  raise "no #{kind} was raised"
end

# Waits until the server computes nothing, as it must soon after a client has left.
def wait_until_idle
  1000.times do
    return if get("#{URLS['default']}/metrics").match?(/^onward_engine_running\{model="toy"\} 0(\.0)?$/)
    sleep(0.01)
  end
  raise "the server still works for a client that has left"
end

check("text: every field, none unknown") do
  completion = create
  known = %i[id object created model system_fingerprint choices usage]
  assert((completion.to_h.keys - known).empty? && completion.id.start_with?("cmpl-"), completion.to_h)
  assert(completion.object == :text_completion && completion.created.positive? && completion.system_fingerprint)
  usage = completion.usage
  assert([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens] == [17, 12, 29], usage)
  choice = completion.choices[0]
  assert(choice.index.zero? && choice.finish_reason == :length && choice.logprobs.nil?, choice)
end

check("token ids, lists of texts and of token ids") do
  one = texts(create(prompt: "ab"))
  assert(texts(create(prompt: [97, 98])) == one, one)
  both = texts(create(prompt: %w[ab Say]))
  assert(both[0] == one[0] && texts(create(prompt: [[97, 98], [83, 97, 121]])) == both, both)
end

check("n and best_of") do
  fields = {n: 2, best_of: 4, seed: 7, temperature: 1}
  first = create(**fields)
  assert(first.choices.map(&:index) == [0, 1] && texts(create(**fields)) == texts(first), first)
end

check("logprobs") do
  choice = create(logprobs: 2).choices[0]
  found = choice.logprobs
  assert(found.text_offset[0] == PROMPT.length && found.tokens.length == found.top_logprobs.length, found)
  found.tokens.each_with_index do |token, place|
    assert(found.top_logprobs[place][token.to_sym] == found.token_logprobs[place], place)
  end
end

# As in OpenAI's answers, which the SDK's classes do not allow: it raises where they are read by these.
check("echo with logprobs: the first entries are null, and can be read as they were sent") do
  choice = create(logprobs: 2, echo: true).choices[0]
  refused(OpenAI::Errors::ConversionError) { choice.logprobs }
  found = choice.to_h.fetch(:logprobs).to_h
  assert(choice.text.start_with?(PROMPT) && found[:text_offset][0].zero?, found)
  assert(found[:token_logprobs][0].nil? && found[:top_logprobs][0].nil? && found[:token_logprobs][1].negative?, found)
end

check("suffix, stop and every other parameter") do
  completion = create(
    suffix: " end", stop: ["\n\n\n"], user: "u", top_p: 0.9, seed: 1, logit_bias: {"50": -100},
    presence_penalty: 0.1, frequency_penalty: 0.1, request_options: {extra_body: {top_k: 5}}
  )
  assert(completion.usage.prompt_tokens > 17, completion.usage)
  whole = texts(create)[0]
  stopped = create(stop: whole[2]).choices[0]
  assert(stopped.finish_reason == :stop && whole.start_with?(stopped.text) && stopped.text.length <= 2, stopped)
end

check("a batch of 256 prompts, in order") do
  prompts = Array.new(256) { |number| "prompt #{number}" }
  all = create(prompt: prompts, max_tokens: 4)
  assert(all.choices.map(&:index) == (0..255).to_a, all.choices.length)
  [0, 100, 255].each { |place| assert(texts(create(prompt: prompts[place], max_tokens: 4)) == [texts(all)[place]], place) }
end

check("models; OpenAI's names are constants of the SDK") do
  ids = client.models.list.data.map(&:id)
  assert(%w[toy davinci-002].all? { ids.include?(_1) } && client.models.retrieve("toy").owned_by == "onward", ids)
  names = OpenAI::CompletionCreateParams::Model
  [names::GPT_3_5_TURBO_INSTRUCT, names::DAVINCI_002, names::BABBAGE_002].each do |model|
    assert(create(model: model).model == "toy", model)
  end
end

check("a stream with usage is the whole answer") do
  whole = create
  chunks = client.completions.create_streaming(**GREEDY, stream_options: {include_usage: true}).to_a
  assert(chunks.flat_map(&:choices).map(&:text).join == texts(whole)[0], chunks)
  assert(chunks.last.choices.empty? && chunks.last.usage.completion_tokens == whole.usage.completion_tokens, chunks.last)
end

check("a closed stream ends its work on the server") do
  fields = {max_tokens: 1900, n: 16, request_options: {extra_body: {ignore_eos: true}}}
  stream = client.completions.create_streaming(**GREEDY, **fields)
  stream.first(3)
  stream.close
  wait_until_idle
end

check("an error in the middle of a stream, and a lost connection, are raised") do
  [["error", OpenAI::Errors::APIError], ["cut", StandardError]].each do |fault, kind|
    begin
      client("faults", path: "/#{fault}/x").completions.create_streaming(**GREEDY, max_tokens: 999).each { nil }
    rescue kind
      next
    end
    raise "nothing was raised by the fault #{fault}"
  end
end

check("errors of the server: 400, 401, 403, 404, with param, type and code") do
  bad = refused(OpenAI::Errors::BadRequestError) { create(temperature: 9) }
  assert(bad.body.dig(:error, :param) == "temperature" && bad.body.dig(:error, :type) == "invalid_request_error", bad)
  refused(OpenAI::Errors::BadRequestError) { create(request_options: {extra_body: {foo: 1}}) }
  missing = refused(OpenAI::Errors::NotFoundError) { create(model: "nope") }
  assert(missing.body.dig(:error, :code) == "model_not_found", missing)
  stranger = refused(OpenAI::Errors::AuthenticationError) { create(client("keyed", key: "wrong")) }
  assert(stranger.body.dig(:error, :code) == "invalid_api_key", stranger)
  create(client("keyed", key: ENV.fetch("ONWARD_CLIENT_KEY")))
  elsewhere = {extra_headers: {"origin" => "https://elsewhere.example"}}
  refused(OpenAI::Errors::PermissionDeniedError) { create(request_options: elsewhere) }
end

check("every error class by its status") do
  classes = {
    400 => OpenAI::Errors::BadRequestError, 401 => OpenAI::Errors::AuthenticationError,
    403 => OpenAI::Errors::PermissionDeniedError, 404 => OpenAI::Errors::NotFoundError,
    409 => OpenAI::Errors::ConflictError, 413 => OpenAI::Errors::APIStatusError,
    422 => OpenAI::Errors::UnprocessableEntityError, 429 => OpenAI::Errors::RateLimitError,
    500 => OpenAI::Errors::InternalServerError, 503 => OpenAI::Errors::InternalServerError
  }
  classes.each do |status, kind|
    problem = refused(kind) { create(client("faults", path: "/status/#{status}", retries: 2)) }
    assert(problem.status == status && problem.body.dig(:error, :code) == "on_purpose", problem)
  end
end

check("retries: 429 twice with retry-after-ms, 503 with Retry-After, none where x-should-retry is false") do
  [["retry", %w[0 1 2]], ["busy", %w[0 1]]].each do |fault, counters|
    name = "ruby#{SecureRandom.hex(4)}"
    create(client("faults", path: "/#{fault}/#{name}", retries: 2))
    assert(JSON.parse(get("#{URLS['faults']}/seen/#{name}")) == counters, fault)
  end
  name = "ruby#{SecureRandom.hex(4)}"
  refused(OpenAI::Errors::RateLimitError) { create(client("faults", path: "/stop/#{name}", retries: 2)) }
  assert(JSON.parse(get("#{URLS['faults']}/seen/#{name}")) == ["0"], name)
end

exit($failed ? 1 : 0)
