/** Templates of instruct models: what a turn looks like in the text. They are inserted as plain text, nothing is hidden. */

export interface Template {
  name: string;
  /** Around the system text; where a model has no such turn, it begins the first request. */
  system: readonly [string, string];
  user: readonly [string, string];
  /** What the model's answer follows. */
  answer: string;
}

export const TEMPLATES: readonly Template[] = [
  { name: "ChatML", system: ["<|im_start|>system\n", "<|im_end|>\n"], user: ["<|im_start|>user\n", "<|im_end|>\n"], answer: "<|im_start|>assistant\n" },
  {
    name: "Llama 3",
    system: ["<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"],
    user: ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"],
    answer: "<|start_header_id|>assistant<|end_header_id|>\n\n",
  },
  { name: "Gemma", system: ["", "\n\n"], user: ["<start_of_turn>user\n", "<end_of_turn>\n"], answer: "<start_of_turn>model\n" },
  { name: "Mistral", system: ["", "\n\n"], user: ["[INST] ", " [/INST]"], answer: "" },
  { name: "Phi 3", system: ["<|system|>\n", "<|end|>\n"], user: ["<|user|>\n", "<|end|>\n"], answer: "<|assistant|>\n" },
  { name: "Alpaca", system: ["", "\n\n"], user: ["### Instruction:\n", "\n\n"], answer: "### Response:\n" },
  { name: "Vicuna", system: ["", "\n\n"], user: ["USER: ", "\n"], answer: "ASSISTANT:" },
];

/** Templates without a turn for the system text put it into the first request, inside its marks. */
const INSIDE = new Set(["Gemma", "Mistral"]);

/** Returns a request in a template, up to where the model's answer begins. */
export function request({ name, system: [before, after], user: [open, close], answer }: Template, system: string, user: string): string {
  const instructed = system === "" ? "" : before + system + after;
  return INSIDE.has(name) ? open + instructed + user + close + answer : instructed + open + user + close + answer;
}
