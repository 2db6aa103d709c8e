// What the Python side says about a trace: written by view/document.py, read here and nowhere changed.

export type Plain = string | number | boolean | null;
export type Side = "tokens" | "source" | "written" | null;

export interface LayerMeta {
  name: string; // its stable text, as files have it
  label: string; // what a person calls it: "layer 23"
  stack: string; // the stack of layers it stands in
  index: number | null; // its place there
  kind: "self" | "cross";
  mechanism: "softmax" | "linear" | "dense";
  heads: number;
  queries: number;
  keys: number;
  rows: Side; // whose tokens label the rows; null: positions
  cols: Side;
  values: boolean; // whether value vectors are there
}

export interface HeadLabel {
  label: string;
  rule: string;
}

export interface HeadFacts {
  measures: Record<
    string,
    { what: string; values: (number | null)[][]; chance: (number | null)[]; standsOut: boolean[][] }
  >;
  labels: (HeadLabel | null)[][]; // [layer][head]
  scenes: Scene[]; // of the tour; none in a long text
}

/** A view with a caption: one stop of the tour. */
export interface Scene {
  title: string;
  says: (string | { word: string } | { term: string })[];
  state: Record<string, unknown>;
}

export interface DocMeta {
  id: string;
  title: string;
  model: Record<string, Plain>;
  modelKey: string; // what a request for the same model names
  text: string;
  target: string | null;
  tokens: string[];
  source: string[];
  written: string[]; // what an encoder-decoder writes after reading each token: its rows of cross-attention
  layers: LayerMeta[];
  notices: string[];
  checks: string;
  off: [number, number][];
  kind: "encoder" | "decoder" | "encoder-decoder" | "unknown";
  predicts: "next" | "masked" | "vector" | null;
  generated: { start: number; steps: Prediction[][] } | null;
  precision: string; // how exactly the numbers are kept
  grid: Grid | null; // of a vision model
}

/** Where in its image a vision model's positions are: patches row by row, after some special tokens. */
export interface Grid {
  rows: number;
  columns: number;
  before: number;
  image: string | null; // a data URL
}

export interface Prediction {
  token: string;
  p: number;
}

export interface Region {
  layer: number;
  head: number;
  r0: number;
  r1: number;
  c0: number;
  c1: number;
  nRow: number; // groups of nearly equal size, each shown by its largest weight
  nCol: number;
  valued: boolean; // weight times the length of the value vector
}

/** Row-major numbers; NaN where every cell of a group is hidden. */
export interface Tile {
  nRow: number;
  nCol: number;
  values: Float32Array;
}

export interface ScoreParts {
  q: number[];
  k: number[];
  v: number[] | null;
  products: number[];
  additive: boolean;
  scale: number | null;
  similarity: number;
  softcap: number | null;
  bias: number;
  visible: boolean;
  score: number | null; // null: minus infinity
  lse: number | null;
  weight: number;
  mechanism: "softmax" | "linear" | "dense";
}

/** A row taken apart. Softmax over visible scores and `rest` (the keys left out of a long row) gives its weights. */
export interface MachineRow {
  parts: ScoreParts;
  keys: number[]; // none: this layer has no softmax
  scores: number[];
  visible: boolean[];
  rest: number | null;
  values: number[][] | null;
  model?: ModelPart | null;
  without?: string; // why there is none
}

/** What only the model, or a file that kept it, can say of a link. */
export interface ModelPart {
  x: number[];
  xKey: number[];
  q: number[]; // before positions turn it
  k: number[];
  added?: number; // length of what the head adds to x
  length?: number; // length of x
  push?: { tokens: string[]; byKey: number[][] } | null; // on the next token's scores, at weight 1
}

export interface Pair {
  query: number;
  key: number;
  weight: number;
}

export interface ModelChoice {
  key: string;
  name: string;
  what: string;
  present: boolean;
  command: string | null; // how to get it
  kind: DocMeta["kind"];
  random: boolean;
  given: boolean; // a trace, not a model: it has a text of its own
}

/** Anything that can be drawn: three kinds answer, so that no view knows where its numbers come from. */
export interface TileSource {
  readonly meta: DocMeta;
  tile(region: Region, signal?: AbortSignal): Promise<Tile>;
  /** Pictures of whole heads, of at most `cells` rows and columns. */
  small(heads: [number, number][], cells: number, signal?: AbortSignal): Promise<Tile[]>;
  parts(layer: number, head: number, query: number, key: number): Promise<ScoreParts>;
  machine(layer: number, head: number, query: number, key: number): Promise<MachineRow>;
  pairs(layer: number, head: number): Promise<Pair[]>;
  facts(): Promise<HeadFacts>;
}

export interface TraceRequest {
  model: string;
  text: string;
  target?: string | null;
  off?: [number, number][];
  maxNew?: number;
}

export interface Progress {
  done: number;
  total: number;
}

/** What each head does to the prediction, and what that number is. */
export interface Effects {
  what: string;
  values: (number | null)[][];
}

export interface Search {
  heads: { layer: number; head: number; share: number }[];
  pairs: number;
  offset: number; // in words: the fixed distance that is right most often
  baseline: number; // how often that is
  chance: number;
}

export interface PredictionAnswer {
  kind: "next" | "masked" | "vector";
  position: number;
  before: Prediction[]; // with all heads
  after: Prediction[] | null; // with the heads switched off, in the same order as `before`
  moved: number | null; // 1 - cosine of the sentence vectors
}

/** What needs a running model: the server or the notebook's kernel. */
export interface Backend {
  models(): Promise<ModelChoice[]>;
  /** Run the model; `maxNew` lets it write. `told` hears of its layers as they are done. */
  trace(
    request: TraceRequest,
    told?: (progress: Progress) => void,
    signal?: AbortSignal,
  ): Promise<TileSource>;
  predict(doc: DocMeta, position: number | null): Promise<PredictionAnswer>;
  gradient(
    doc: DocMeta,
    at: { layer: number; head: number; query: number; key: number; position: number },
  ): Promise<{ gradient: number; value: number; token: string }>;
  open(name: string, bytes: ArrayBuffer): Promise<TileSource>;
  effects(doc: DocMeta): Promise<Effects>;
  search(doc: DocMeta, lines: string[]): Promise<Search>;
  save(path: (Scene & { doc: string })[]): Promise<ArrayBuffer>;
  onConnection(listener: (alive: boolean) => void): void;
}

export const aborted = (error: unknown): boolean =>
  error instanceof DOMException && error.name === "AbortError";
