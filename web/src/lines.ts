// Lines: two columns of tokens, queries left and keys right, and a link for each weight.

import { CATEGORY, type Theme } from "./colour";
import { fill, h, number } from "./dom";
import type { Tile, TileSource } from "./types";
import { isSpecial, labels, type Word, wordsOf } from "./words";

export interface LineHead {
  layer: number;
  head: number;
}

export interface LineOptions {
  heads: LineHead[];
  words: boolean;
  noSpecial: boolean;
  chosen: number[];
  valued: boolean;
  theme: Theme;
  links: LinkCount;
  near: number | null; // the token that a long text opens at
}

/** How many links of each token are drawn; few by themselves where many would be a wall. */
export type LinkCount = "auto" | "all" | "3" | "1";

interface Link {
  from: number; // pixels from the top
  to: number;
  colour: string;
  opacity: number;
  width: number;
}

const ALL_UP_TO = 40; // tokens whose links are all drawn
const ROW = 21;
const MOST = 256; // tokens of one window: more lines are a tangle, so long texts are read window by window
const LEAST = 0.004; // links below are not drawn; their weight still counts in the numbers

/** Weights between words: those of a word's keys are summed, those of its queries averaged. */
export function byWord(tile: Tile, rows: Word[], cols: Word[], r0: number, c0: number): Tile {
  const values = new Float32Array(rows.length * cols.length);
  rows.forEach((row, i) => {
    cols.forEach((col, j) => {
      let sum = 0;
      for (let r = row.first; r < row.last; r++)
        for (let c = col.first; c < col.last; c++) sum += tile.values[(r - r0) * tile.nCol + c - c0]! || 0;
      values[i * cols.length + j] = sum / (row.last - row.first);
    });
  });
  return { nRow: rows.length, nCol: cols.length, values };
}

/** Columns left out, and each row's rest made to sum to 1 again; a row with nothing left stays 0. */
export function without(tile: Tile, left: boolean[]): Tile {
  const values = new Float32Array(tile.values.length);
  for (let r = 0; r < tile.nRow; r++) {
    let sum = 0;
    for (let c = 0; c < tile.nCol; c++) if (!left[c]) sum += tile.values[r * tile.nCol + c]! || 0;
    for (let c = 0; c < tile.nCol; c++)
      values[r * tile.nCol + c] = left[c] || sum <= 0 ? 0 : (tile.values[r * tile.nCol + c]! || 0) / sum;
  }
  return { ...tile, values };
}

/** Keys that most queries look at most: those whose mean weight is above a half. */
export function sinks(tile: Tile): boolean[] {
  return Array.from({ length: tile.nCol }, (_, c) => {
    let sum = 0;
    for (let r = 0; r < tile.nRow; r++) sum += tile.values[r * tile.nCol + c]! || 0;
    return tile.nCol > 2 && sum / tile.nRow > 0.5;
  });
}

/** The smallest weight of each row that is drawn: its `most` largest are; 0: all. */
function leastDrawn(tile: Tile, most: number): Float32Array {
  return Float32Array.from({ length: tile.nRow }, (_, r) => {
    if (!most) return 0;
    const row = tile.values.slice(r * tile.nCol, (r + 1) * tile.nCol).sort();
    return row[Math.max(0, row.length - most)] ?? 0;
  });
}

export class LinesView {
  readonly element = h("div", { class: "lines" });
  private hovered: { side: "query" | "key"; index: number } | null = null;
  private start = 0;
  private ticket = 0;
  private last: { source: TileSource; options: LineOptions } | null = null;
  private links: Link[] = []; // as they are drawn now

  constructor(
    private readonly choose: (chosen: number[]) => void,
    private readonly error: (error: unknown) => void,
  ) {}

  async show(
    source: TileSource,
    options: LineOptions,
    rowTokens: string[],
    colTokens: string[],
  ): Promise<void> {
    // A long text opens where its chosen token is; who pages on stays there until another is chosen.
    if (this.last?.source !== source || this.last.options.near !== options.near)
      this.start = Math.max(0, (options.near ?? 0) - MOST / 2);
    this.last = { source, options };
    const ticket = ++this.ticket;
    const r0 = Math.min(this.start, Math.max(0, rowTokens.length - MOST));
    const r1 = Math.min(rowTokens.length, r0 + MOST);
    const square = rowTokens.length === colTokens.length;
    const c0 = square ? r0 : 0;
    const c1 = square ? r1 : Math.min(colTokens.length, MOST);
    try {
      const fitting = options.heads.filter(
        ({ layer }) =>
          source.meta.layers[layer]!.queries === rowTokens.length &&
          source.meta.layers[layer]!.keys === colTokens.length,
      );
      const tiles = await Promise.all(
        fitting.map(({ layer, head }) =>
          source.tile({ layer, head, r0, r1, c0, c1, nRow: r1 - r0, nCol: c1 - c0, valued: options.valued }),
        ),
      );
      if (ticket !== this.ticket) return;
      const shift = (words: Word[], by: number) =>
        words.map((w) => ({ ...w, first: w.first + by, last: w.last + by }));
      const each = (tokens: string[], from: number, names = labels(tokens)) =>
        tokens.map((t, i) => ({
          text: names[i]!,
          first: from + i,
          last: from + i + 1,
          special: isSpecial(t),
        }));
      const rows = options.words
        ? shift(wordsOf(rowTokens.slice(r0, r1)), r0)
        : each(rowTokens.slice(r0, r1), r0);
      const cols = options.words
        ? shift(wordsOf(colTokens.slice(c0, c1)), c0)
        : each(colTokens.slice(c0, c1), c0);
      let shown = tiles.map((tile) =>
        options.words
          ? byWord(tile, rows, cols, r0, c0)
          : { ...tile, values: tile.values.map((v) => v || 0) },
      );
      let left: boolean[] = cols.map(() => false);
      if (options.noSpecial) {
        left = cols.map((word, c) => word.special || shown.some((tile) => sinks(tile)[c]!));
        shown = shown.map((tile) => without(tile, left));
      }
      this.render(rows, cols, shown, fitting, options, left, {
        r0,
        total: rowTokens.length,
        outside: square && rowTokens.length > MOST,
      });
    } catch (error) {
      this.error(error);
    }
  }

  /** The links of the canvas as SVG; nothing for another canvas. */
  vectors(canvas: HTMLCanvasElement): string {
    if (!this.element.contains(canvas)) return "";
    const w = canvas.clientWidth;
    const path = ({ from, to, colour, opacity, width }: Link) =>
      `<path d="M0,${from} C${0.4 * w},${from} ${0.6 * w},${to} ${w},${to}" fill="none" stroke="${colour}" stroke-width="${width.toFixed(2)}" opacity="${opacity.toFixed(3)}"/>`;
    return this.links.map(path).join("");
  }

  private render(
    rows: Word[],
    cols: Word[],
    tiles: Tile[],
    heads: LineHead[],
    options: LineOptions,
    left: boolean[],
    window: { r0: number; total: number; outside: boolean },
  ): void {
    const height = Math.max(rows.length, cols.length) * ROW + 8;
    const canvas = h("canvas", { class: "links", "aria-hidden": "true" });
    const side = (words: Word[], which: "query" | "key") =>
      h(
        "ol",
        {
          class: `column ${which}`,
          "aria-label": which === "query" ? "queries (look)" : "keys (are looked at)",
        },
        words.map((word, i) =>
          h(
            "li",
            {},
            h(
              "button",
              {
                type: "button",
                class: `token${which === "key" && left[i] ? " left" : ""}`,
                title: word.text,
                "data-index": word.first,
                "aria-pressed": which === "query" ? String(options.chosen.includes(word.first)) : undefined,
                onpointerenter: () => {
                  this.hovered = { side: which, index: i };
                  draw();
                },
                onpointerleave: () => {
                  this.hovered = null;
                  draw();
                },
                onfocus: () => {
                  this.hovered = { side: which, index: i };
                  draw();
                },
                onclick: () =>
                  which === "query" &&
                  this.choose(
                    options.chosen.includes(word.first)
                      ? options.chosen.filter((c) => c !== word.first)
                      : [...options.chosen, word.first],
                  ),
              },
              h("span", { class: "name" }, word.text),
              h("span", { class: "sum" }),
            ),
          ),
        ),
      );
    const queries = side(rows, "query");
    const keys = side(cols, "key");
    const most = options.links === "auto" ? (rows.length > ALL_UP_TO ? 3 : 0) : Number(options.links) || 0;
    const least = tiles.map((tile) => leastDrawn(tile, most));
    const notes = [
      most > 0 &&
        `Drawn are the ${most === 1 ? "strongest link" : `${most} strongest links`} of each token. A token you point at has them all.`,
      options.noSpecial &&
        `Special tokens and sinks are left out (${left.filter(Boolean).length} keys); the rest of each row is scaled to sum to 1: these are not the model's own weights.`,
      options.words && "Words: the weights of a word's keys are summed, those of its queries averaged.",
      window.outside &&
        `Tokens ${window.r0} to ${window.r0 + rows.length - 1} of ${window.total}: links to tokens outside this window are not drawn.`,
      heads.length < options.heads.length && "Heads of layers with other tokens are left out.",
      options.chosen.length > 1 && `${options.chosen.length} tokens chosen: their weights are summed.`,
    ].filter((note): note is string => typeof note === "string");
    const move = (by: number) => {
      this.start = Math.max(0, window.r0 + by);
      this.hovered = null;
      if (this.last) this.choose(options.chosen);
    };
    fill(
      this.element,
      h(
        "div",
        { class: "notes" },
        h(
          "div",
          { class: "chips" },
          heads.map((at, i) => {
            const chip = h("span", { class: "chip" }, h("i"), `layer ${at.layer} · head ${at.head}`);
            chip.style.setProperty("--label", CATEGORY[i % CATEGORY.length]!);
            return chip;
          }),
          h(
            "span",
            { class: "quiet tool" },
            "Control-click a head to add it. Click tokens on the left to choose several.",
          ),
        ),
        window.outside &&
          h(
            "div",
            { class: "pager tool" },
            h(
              "button",
              { type: "button", disabled: window.r0 === 0, onclick: () => move(-MOST) },
              "← earlier",
            ),
            h(
              "button",
              {
                type: "button",
                disabled: window.r0 + rows.length >= window.total,
                onclick: () => move(MOST),
              },
              "later →",
            ),
          ),
        notes.map((note) => h("p", { class: "quiet" }, note)),
      ),
      h("div", { class: "heads2" }, h("span", {}, "looking (query)"), h("span", {}, "looked at (key)")),
      h("div", { class: "board" }, queries, canvas, keys),
    );
    const draw = () => this.draw(canvas, queries, keys, rows, cols, tiles, least, options, height);
    new ResizeObserver(draw).observe(canvas);
    draw();
  }

  private draw(
    canvas: HTMLCanvasElement,
    queries: HTMLElement,
    keys: HTMLElement,
    rows: Word[],
    cols: Word[],
    tiles: Tile[],
    least: Float32Array[],
    options: LineOptions,
    height: number,
  ): void {
    const ratio = globalThis.devicePixelRatio || 1;
    const width = canvas.clientWidth || 300;
    canvas.style.height = `${height}px`;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext("2d")!;
    context.scale(ratio, ratio);
    const chosen = rows.map((row) => options.chosen.includes(row.first));
    const any = chosen.some(Boolean);
    const { hovered } = this;
    const lit = (r: number, c: number) =>
      hovered ? (hovered.side === "query" ? r === hovered.index : c === hovered.index) : !any || chosen[r]!;
    // On a dark ground a thin line needs more of its colour.
    const faint = (strength: number) =>
      options.theme === "dark" ? 0.9 * strength ** 0.7 : 0.75 * strength ** 1.2;
    let top = 1e-9;
    for (const tile of tiles) for (const v of tile.values) if (v > top) top = v;
    this.links = [];
    tiles.forEach((tile, i) => {
      for (let r = 0; r < tile.nRow; r++) {
        for (let c = 0; c < tile.nCol; c++) {
          const weight = tile.values[r * tile.nCol + c]!;
          if (weight < LEAST * top || !lit(r, c) || (!hovered && weight < least[i]![r]!)) continue;
          const strength = weight / top;
          const focus = hovered || any;
          this.links.push({
            from: (r + 0.5) * ROW + i * 1.5,
            to: (c + 0.5) * ROW + i * 1.5,
            colour: CATEGORY[i % CATEGORY.length]!,
            opacity: focus ? 0.15 + 0.85 * strength : faint(strength),
            width: 0.6 + (focus ? 6 : 4) * strength,
          });
        }
      }
    });
    context.lineCap = "round";
    for (const { from, to, colour, opacity, width: wide } of this.links) {
      context.strokeStyle = colour;
      context.globalAlpha = opacity;
      context.lineWidth = wide;
      context.beginPath();
      context.moveTo(0, from);
      context.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
      context.stroke();
    }
    const sums = (element: HTMLElement, value: (index: number) => number | null) =>
      element.querySelectorAll(".token").forEach((token, index) => {
        const found = value(index);
        token.querySelector(".sum")!.textContent = found === null ? "" : number(found);
        token.classList.toggle("dim", (hovered !== null || any) && (found === null || found < 0.01 * top));
      });
    const over = (r: number[], c: number[]) =>
      tiles.reduce(
        (sum, tile) =>
          sum + r.reduce((a, row) => a + c.reduce((b, col) => b + tile.values[row * tile.nCol + col]!, 0), 0),
        0,
      );
    const active =
      hovered?.side === "query" ? [hovered.index] : any ? rows.map((_, i) => i).filter((i) => chosen[i]) : [];
    sums(keys, (c) =>
      hovered?.side === "key"
        ? c === hovered.index
          ? over(
              rows.map((_, i) => i),
              [c],
            )
          : null
        : active.length
          ? over(active, [c])
          : null,
    );
    sums(queries, (r) =>
      hovered?.side === "key"
        ? over([r], [hovered.index])
        : active.includes(r)
          ? over(
              [r],
              cols.map((_, i) => i),
            )
          : null,
    );
  }
}
