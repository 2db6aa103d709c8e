// The kinds of TileSource: a trace in the page, one behind a server or a notebook, and a difference of two.

import { float16, float32, fromBase64 } from "./binary";
import { EmbeddedLayer, type PackedLayer, pooled } from "./layer";
import type {
  Backend,
  DocMeta,
  Effects,
  HeadFacts,
  MachineRow,
  ModelChoice,
  OneHead,
  Pair,
  PredictionAnswer,
  Progress,
  Region,
  SavedSize,
  Scene,
  ScoreParts,
  Search,
  Tile,
  TileSource,
  TraceRequest,
  WhyAnswer,
  WordLink,
} from "./types";
import { isSpecial } from "./words";

export interface EmbeddedDoc {
  meta: DocMeta;
  facts: HeadFacts;
  layers: PackedLayer[];
  data: string; // base64
}

/** Resolves when the browser has drawn and handled input; at once while less than a frame has passed. */
function breather(signal?: AbortSignal): () => Promise<void> {
  let last = performance.now();
  return async () => {
    if (signal?.aborted) throw new DOMException("no longer looked at", "AbortError");
    if (performance.now() - last < 10) return;
    await new Promise((resolve) => setTimeout(resolve, 0));
    last = performance.now();
  };
}

/** All of a head in at most `cells` rows and columns. */
function whole(meta: DocMeta, layer: number, head: number, cells: number): Region {
  const { queries, keys } = meta.layers[layer]!;
  const [nRow, nCol] = [Math.min(cells, queries), Math.min(cells, keys)];
  return { layer, head, r0: 0, r1: queries, c0: 0, c1: keys, nRow, nCol, valued: false };
}

const MOST_LINKS = 12; // of a word, over all heads: as view/document.py has it

/** By how much a link exceeds an even spread, as a share of what is possible. */
const rankOf = ({ weight, even }: Pick<WordLink, "weight" | "even">): number =>
  even < 1 ? (weight - even) / (1 - even) : 0;

/** The largest weight of a row and what an even spread would give; null for a row that sees nothing. */
export function strongestLink(row: Float32Array): Pick<WordLink, "key" | "weight" | "even"> | null {
  let [key, visible] = [-1, 0];
  row.forEach((weight, i) => {
    if (Number.isNaN(weight)) return;
    visible += 1;
    if (key < 0 || weight > row[key]!) key = i;
  });
  return key < 0 ? null : { key, weight: row[key]!, even: 1 / visible };
}

export class EmbeddedTiles implements TileSource {
  readonly meta: DocMeta;
  private readonly layers: EmbeddedLayer[];

  constructor(private readonly doc: EmbeddedDoc) {
    this.meta = doc.meta;
    let bytes: Uint8Array | null = null;
    this.layers = doc.layers.map(
      (packed, i) => new EmbeddedLayer(doc.meta.layers[i]!, packed, () => (bytes ??= fromBase64(doc.data))),
    );
  }

  tile(region: Region, signal?: AbortSignal): Promise<Tile> {
    return pooled(this.layers[region.layer]!, region, breather(signal));
  }

  async small(heads: [number, number][], cells: number, signal?: AbortSignal): Promise<Tile[]> {
    const tiles: Tile[] = [];
    for (const [layer, head] of heads)
      tiles.push(await this.tile(whole(this.meta, layer, head, cells), signal));
    return tiles;
  }

  async parts(layer: number, head: number, query: number, key: number): Promise<ScoreParts> {
    return this.layers[layer]!.parts(head, query, key);
  }

  async machine(layer: number, head: number, query: number, key: number): Promise<MachineRow> {
    return this.layers[layer]!.machine(head, query, key);
  }

  async pairs(layer: number, head: number): Promise<Pair[]> {
    const found = this.layers[layer]!;
    const { queries, keys } = found.meta;
    const pause = breather();
    let best: Pair[] = [];
    for (let query = 0; query < queries; query++) {
      const row = found.rows(head, query, query + 1, 0, keys, false);
      for (let key = 0; key < keys; key++) {
        const weight = row[key]!;
        if (best.length < 10 || weight > best[best.length - 1]!.weight) {
          if (Number.isNaN(weight)) continue;
          best.push({ query, key, weight });
          best.sort((a, b) => b.weight - a.weight);
          best = best.slice(0, 10);
        }
      }
      await pause();
    }
    return best;
  }

  async facts(): Promise<HeadFacts> {
    return this.doc.facts;
  }

  async headFacts(layer: number, head: number): Promise<OneHead> {
    const { measures, labels } = this.doc.facts;
    const of = ([name, { what, values, chance }]: [string, HeadFacts["measures"][string]]) => [
      name,
      { what, value: values[layer]?.[head] ?? null, chance: chance[layer] ?? null },
    ];
    return {
      measures: Object.fromEntries(Object.entries(measures).map(of)),
      label: labels[layer]?.[head] ?? null,
    };
  }

  async links(query: number, like: number): Promise<WordLink[]> {
    const found: WordLink[] = [];
    const side = this.meta.layers[like]!.rows;
    for (const [layer, { meta }] of this.layers.entries()) {
      if (query >= meta.queries || meta.rows !== side) continue; // rows of other tokens
      for (let head = 0; head < meta.heads; head++) {
        const row = this.layers[layer]!.rows(head, query, query + 1, 0, meta.keys, false);
        const link = strongestLink(row);
        if (link) found.push({ layer, head, ...link });
      }
    }
    // Links to other words first: on special tokens and on oneself most heads rest.
    const cols = (layer: number) => this.meta[this.meta.layers[layer]!.cols ?? "tokens"];
    const rests = ({ layer, key }: WordLink) =>
      Number(
        key === query || isSpecial(cols(layer)[key] ?? "") || !/[\p{L}\p{N}]/u.test(cols(layer)[key] ?? "x"),
      );
    return found.sort((a, b) => rests(a) - rests(b) || rankOf(b) - rankOf(a)).slice(0, MOST_LINKS);
  }
}

/** How a question reaches Python and the answer comes back: HTTP or a notebook's messages. */
export interface Transport {
  ask(name: string, params: unknown, body?: ArrayBuffer, signal?: AbortSignal): Promise<ArrayBuffer>;
  onConnection(listener: (alive: boolean) => void): void;
}

async function askJson<T>(
  to: Transport,
  name: string,
  params: unknown,
  body?: ArrayBuffer,
  signal?: AbortSignal,
): Promise<T> {
  return JSON.parse(new TextDecoder().decode(await to.ask(name, params, body, signal))) as T;
}

class RemoteTiles implements TileSource {
  private known: Promise<HeadFacts> | null = null;

  constructor(
    readonly meta: DocMeta,
    private readonly transport: Transport,
  ) {}

  async tile(region: Region, signal?: AbortSignal): Promise<Tile> {
    // Few cells are read as numbers, so they come whole; many are looked at, and half the bits are enough.
    const exact = region.nRow * region.nCol <= 4096 || region.nRow === 1;
    const bytes = new Uint8Array(
      await this.transport.ask(
        "tile",
        { doc: this.meta.id, ...region, dtype: exact ? "float32" : "float16" },
        undefined,
        signal,
      ),
    );
    const nRow = Math.min(region.nRow, region.r1 - region.r0);
    const nCol = Math.min(region.nCol, region.c1 - region.c0);
    return { nRow, nCol, values: exact ? float32(bytes) : float16(bytes) };
  }

  async small(heads: [number, number][], cells: number, signal?: AbortSignal): Promise<Tile[]> {
    const asked = { doc: this.meta.id, heads, cells };
    const values = float16(new Uint8Array(await this.transport.ask("small", asked, undefined, signal)));
    let at = 0;
    return heads.map(([layer, head]) => {
      const { nRow, nCol } = whole(this.meta, layer, head, cells);
      at += nRow * nCol;
      return { nRow, nCol, values: values.slice(at - nRow * nCol, at) };
    });
  }

  parts(layer: number, head: number, query: number, key: number): Promise<ScoreParts> {
    return askJson(this.transport, "parts", { doc: this.meta.id, layer, head, query, key });
  }

  machine(layer: number, head: number, query: number, key: number): Promise<MachineRow> {
    return askJson(this.transport, "machine", { doc: this.meta.id, layer, head, query, key });
  }

  pairs(layer: number, head: number): Promise<Pair[]> {
    return askJson(this.transport, "pairs", { doc: this.meta.id, layer, head });
  }

  facts(): Promise<HeadFacts> {
    this.known ??= askJson<HeadFacts>(this.transport, "facts", { doc: this.meta.id });
    return this.known;
  }

  headFacts(layer: number, head: number): Promise<OneHead> {
    return askJson(this.transport, "head_facts", { doc: this.meta.id, layer, head });
  }

  links(query: number, layer: number): Promise<WordLink[]> {
    return askJson(this.transport, "links", { doc: this.meta.id, query, layer });
  }
}

export class RemoteBackend implements Backend {
  constructor(private readonly transport: Transport) {}

  models(): Promise<ModelChoice[]> {
    return askJson(this.transport, "models", {});
  }

  private async doc(name: string, params: unknown, body?: ArrayBuffer): Promise<TileSource> {
    return new RemoteTiles(await askJson<DocMeta>(this.transport, name, params, body), this.transport);
  }

  async trace(
    request: TraceRequest,
    told?: (progress: Progress) => void,
    signal?: AbortSignal,
  ): Promise<TileSource> {
    let running = true;
    const run = Math.random().toString(36).slice(2);
    const watch = setInterval(() => {
      askJson<Progress>(this.transport, "progress", { run })
        .then((progress) => running && told?.(progress))
        .catch(() => undefined); // the run itself says what went wrong
    }, 400);
    signal?.addEventListener("abort", () => void askJson(this.transport, "stop", { run }));
    try {
      return await this.doc(request.maxNew ? "generate" : "trace", { ...request, run });
    } finally {
      running = false;
      clearInterval(watch);
    }
  }

  predict(doc: DocMeta, position: number | null): Promise<PredictionAnswer> {
    return askJson(this.transport, "predict", { doc: doc.id, position });
  }

  gradient(
    doc: DocMeta,
    at: { layer: number; head: number; query: number; key: number; position: number },
  ): Promise<{ gradient: number; value: number; token: string }> {
    return askJson(this.transport, "gradient", { doc: doc.id, ...at });
  }

  effects(doc: DocMeta): Promise<Effects> {
    return askJson(this.transport, "effects", { doc: doc.id });
  }

  search(doc: DocMeta, lines: string[]): Promise<Search> {
    return askJson(this.transport, "search", { doc: doc.id, lines });
  }

  why(doc: DocMeta, position: number | null): Promise<WhyAnswer> {
    return askJson(this.transport, "why", { doc: doc.id, position });
  }

  savedSize(docs: string[]): Promise<SavedSize> {
    return askJson(this.transport, "saved_size", { docs });
  }

  save(path: (Scene & { doc: string })[]): Promise<ArrayBuffer> {
    return this.transport.ask("save", { path });
  }

  open(name: string, bytes: ArrayBuffer): Promise<TileSource> {
    return this.doc("open", { name }, bytes);
  }

  onConnection(listener: (alive: boolean) => void): void {
    this.transport.onConnection(listener);
  }
}

/** One head minus another, of the same number of rows and columns. */
export class DifferenceTiles implements TileSource {
  readonly meta: DocMeta;

  constructor(
    private readonly a: TileSource,
    private readonly b: TileSource,
    private readonly of: { layer: number; head: number },
    private readonly minus: { layer: number; head: number },
  ) {
    this.meta = a.meta;
  }

  async tile(region: Region, signal?: AbortSignal): Promise<Tile> {
    const [x, y] = await Promise.all([
      this.a.tile({ ...region, ...this.of }, signal),
      this.b.tile({ ...region, ...this.minus }, signal),
    ]);
    return { ...x, values: x.values.map((value, i) => value - y.values[i]!) };
  }

  small(heads: [number, number][], cells: number, signal?: AbortSignal): Promise<Tile[]> {
    return this.a.small(heads, cells, signal);
  }

  parts(_layer: number, _head: number, query: number, key: number): Promise<ScoreParts> {
    return this.a.parts(this.of.layer, this.of.head, query, key);
  }

  machine(_layer: number, _head: number, query: number, key: number): Promise<MachineRow> {
    return this.a.machine(this.of.layer, this.of.head, query, key);
  }

  pairs(): Promise<Pair[]> {
    return this.a.pairs(this.of.layer, this.of.head);
  }

  facts(): Promise<HeadFacts> {
    return this.a.facts();
  }

  headFacts(): Promise<OneHead> {
    return this.a.headFacts(this.of.layer, this.of.head);
  }

  links(query: number, layer: number): Promise<WordLink[]> {
    return this.a.links(query, layer);
  }
}
