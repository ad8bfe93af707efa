/** Names of what the server answers, from its OpenAPI document (`schema.ts` is generated). */
import type { components } from "./schema";

type Schemas = components["schemas"];
export type Chunk = Schemas["CompletionChunk"];
export type Choice = Schemas["Choice"];
export type Logprobs = Schemas["Logprobs"];
export type Usage = Schemas["Usage"];
export type TokenizerInfo = Schemas["TokenizerInfo"];
export type ApplyTemplateResponse = Schemas["ApplyTemplateResponse"];
export type TokenizeResponse = Schemas["TokenizeResponse"];
export type DetokenizeResponse = Schemas["DetokenizeResponse"];
export type ModelList = Schemas["ModelList"];
export type ErrorBody = Schemas["Error"];
export type RequestBody = Record<string, unknown>;
