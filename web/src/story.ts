// The story: a sentence across the page, one token chosen, and an arc to each token it looks at.

import type { PageContext } from "./context";
import { fill, h, percent, svg } from "./dom";
import { sideTokens } from "./stage";
import type { State } from "./state";
import { gridOf, TextView } from "./textview";
import type { TileSource } from "./types";
import { characters, isSpecial, label, labels, linkNames, spelling, type Word, wordsOf } from "./words";

const SHOWN = 0.02; // arcs of smaller weights are left out; the sentence below still has their number
const WINDOW = 90; // tokens of a long text that are shown around the chosen one
const NAMED = 4; // arcs that carry their number

interface Row {
  tokens: string[]; // of the keys
  weights: Float32Array;
}

/** What an edit changed: the row before, and the word that was replaced. */
interface Before extends Row {
  from: string;
  to: string;
}

type Needs = Pick<
  PageContext,
  "state" | "source" | "facts" | "theme" | "backend" | "change" | "look" | "failed" | "render"
>;

export class Story {
  readonly element = h("main", { class: "story", "aria-label": "Story" });
  private readonly sentence = h("div", { class: "sentence" });
  private readonly arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  private readonly board = h("div", { class: "board2" });
  private readonly picture: TextView; // of a vision model, instead of a sentence
  private readonly said = h("p", { class: "finding", role: "status" });
  private readonly moved = h("p", { class: "moved-weights", role: "status" });
  private readonly hint = h("p", { class: "quiet hint tool" });
  private readonly machine = h("button", { type: "button" }, "How did this number come about?");
  private readonly trying = h("button", { type: "button", class: "primary" });
  private ticket = 0;
  private before: Before | null = null;
  private editing: { word: Word; restore: () => void } | null = null;
  private row: Row | null = null;
  private drawn = "";

  constructor(private readonly page: Needs) {
    this.picture = new TextView(
      (query) => page.change({ query, key: null }),
      (error) => page.failed(error),
      () => undefined,
    );
    this.trying.addEventListener("click", () => this.tryAnother());
    this.machine.addEventListener("click", () => page.change({ at: "machine", scene: page.state.scene }));
    fill(
      this.element,
      this.board,
      this.said,
      this.moved,
      h("div", { class: "actions tool" }, this.trying, this.machine),
      this.hint,
    );
    fill(this.board, this.sentence, this.arcs);
    new ResizeObserver(() => this.drawArcs()).observe(this.sentence);
  }

  async show(source: TileSource): Promise<void> {
    const { layer, head, query, key } = this.page.state;
    const meta = source.meta.layers[layer]!;
    const rows = sideTokens(source, layer, "rows");
    const cols = sideTokens(source, layer, "cols");
    const ticket = ++this.ticket;
    if (this.editing) return;
    const grid = gridOf(source, layer);
    if (grid) this.draw(source, rows, cols);
    else this.write(source, rows, cols);
    this.hint.textContent = grid
      ? "Click a patch of the picture, or a token beside it, to see what it looks at: lit is what it looks at most."
      : this.page.backend
        ? "Click a word to see what it looks at. Click it again to change it."
        : "Click a word to see what it looks at. A saved page has no model: `regard look` lets you change words.";
    const [word, instead] = this.page.state.suggest;
    this.trying.hidden = !this.page.backend || !word || !wordsOf(cols).some(({ text }) => text === word);
    this.trying.textContent = `Change ${word} to ${instead}`;
    if (query === null) {
      this.row = null;
      fill(this.said, this.page.facts ? "" : "Measuring what each head does…");
      this.machine.hidden = true;
      this.drawArcs();
      return;
    }
    const region = { layer, head, r0: query, r1: query + 1, c0: 0, c1: meta.keys, nRow: 1, nCol: meta.keys };
    try {
      const { values } = await source.tile({ ...region, valued: false });
      if (ticket !== this.ticket) return;
      this.row = { tokens: cols, weights: values };
      let best = 0;
      values.forEach((value, i) => (best = value > values[best]! || Number.isNaN(values[best]!) ? i : best));
      const at = key === null ? best : key;
      if (grid) this.draw(source, rows, cols, at);
      const names = linkNames(rows, cols, query, at);
      const weight = values[at]!;
      fill(
        this.said,
        `Head ${layer}.${head} `,
        Number.isNaN(weight) ? "hides " : weight >= 0.1 || at === best ? "connects " : "hardly connects ",
        h("b", { class: "query" }, names.query),
        Number.isNaN(weight) ? " from " : " to ",
        h("b", { class: "key" }, names.key),
        Number.isNaN(weight) ? "." : ` (${percent(weight)}).`,
        at !== best && !Number.isNaN(weight)
          ? ` Its strongest link is ${labels(cols)[best]!} (${percent(values[best]!)}).`
          : "",
      );
      this.said.dataset["weight"] = String(weight);
      this.machine.hidden = Number.isNaN(weight);
      this.compareWithBefore();
      this.drawArcs(at);
    } catch (error) {
      this.page.failed(error);
    }
  }

  /** After an edit: where the weight of the chosen token went. */
  private compareWithBefore(): void {
    const { before, row } = this;
    this.moved.hidden = !before || !row;
    if (!before || !row) return;
    const by = (from: Row) => {
      const sums = new Map<string, number>();
      labels(from.tokens).forEach((token, i) =>
        sums.set(token, (sums.get(token) ?? 0) + (from.weights[i]! || 0)),
      );
      return sums;
    };
    const [was, is] = [by(before), by(row)];
    const largest = [...new Set([...was.keys(), ...is.keys()])]
      .map((token) => ({ token, was: was.get(token) ?? 0, is: is.get(token) ?? 0 }))
      .sort((a, b) => Math.abs(b.is - b.was) - Math.abs(a.is - a.was))
      .slice(0, 3);
    fill(
      this.moved,
      `With ${before.to} for ${before.from}: `,
      largest.map(({ token, was, is }, i) => [
        i > 0 && ", ",
        h("b", {}, token),
        ` ${percent(was)} → ${percent(is)}`,
      ]),
      ".",
    );
  }

  private draw(source: TileSource, rows: string[], cols: string[], at = this.page.state.key): void {
    const { layer, head, query, scale } = this.page.state;
    this.drawn = "";
    if (!this.sentence.contains(this.picture.element)) fill(this.sentence, this.picture.element);
    const how = { scale, theme: this.page.theme, top: 1, diverging: false };
    this.picture.show(source, layer, head, false, rows, cols, query, at, "looks at", how);
  }

  private write(source: TileSource, rows: string[], cols: string[]): void {
    const { layer, query, key } = this.page.state;
    const meta = source.meta.layers[layer]!;
    const cross = meta.rows !== meta.cols;
    const wanted = JSON.stringify([source.meta.id, layer, query, key, !!this.page.backend]);
    if (wanted === this.drawn) return;
    this.drawn = wanted;
    const line = (tokens: string[], side: "query" | "key" | "both") => {
      const near = (side === "key" ? key : query) ?? 0;
      const first =
        tokens.length > WINDOW ? Math.max(0, Math.min(near - WINDOW / 2, tokens.length - WINDOW)) : 0;
      const last = Math.min(tokens.length, first + WINDOW);
      const apart = ["pieces", "plain"].includes(spelling(tokens)); // spaces are not in the tokens
      const text = characters(tokens).flatMap(({ text, count }) => [
        text,
        ...Array<string>(count - 1).fill("·"),
      ]);
      const buttons = text.slice(first, last).map((token, j) => {
        const i = first + j;
        const joined = token.startsWith("##");
        const button = h(
          "button",
          {
            type: "button",
            class: `said-token${isSpecial(token) ? " special" : ""}${joined || (!apart && !/^[\s▁␣]/.test(token)) ? " joined" : ""}`,
            "data-index": i,
            "data-side": side,
            "aria-pressed": side === "key" ? undefined : String(i === query),
            title:
              side !== "key" && this.page.backend ? "click: what it looks at; click again: change it" : "",
            onclick: () => this.click(side, i, tokens),
          },
          joined ? token.slice(2) : label(token),
        );
        if (side !== "key" && i === query) button.classList.add("query");
        if (side !== "query" && i === key) button.classList.add("key");
        return button;
      });
      return h(
        "p",
        { class: `running ${side}`, "aria-label": side === "key" ? "what was read" : "the text" },
        first > 0 && "… ",
        buttons,
        last < tokens.length && " …",
      );
    };
    fill(this.sentence, cross ? [line(cols, "key"), line(rows, "query")] : line(cols, "both"));
    this.element.classList.toggle("cross", cross);
  }

  private click(side: "query" | "key" | "both", index: number, tokens: string[]): void {
    const { state } = this.page;
    if (side === "key") return this.page.change({ key: index });
    if (index === state.query && side === "both" && this.page.backend) return this.edit(index, tokens);
    this.before = null;
    return this.page.change({ query: index, key: null });
  }

  /** The word becomes a field: Enter reads the text with it, Escape leaves it. */
  private edit(index: number, tokens: string[]): void {
    const word = wordsOf(tokens).find(({ first, last }) => first <= index && index < last);
    const button = this.sentence.querySelector<HTMLElement>(`[data-index="${index}"]`);
    if (!word || word.special || !button) return;
    const field = h("input", { class: "edited", value: word.text, "aria-label": `instead of ${word.text}` });
    field.style.width = `${Math.max(3, word.text.length + 1)}ch`;
    field.addEventListener("input", () => (field.style.width = `${Math.max(3, field.value.length + 1)}ch`));
    const restore = () => {
      if (!this.editing) return;
      this.editing = null;
      this.drawn = "";
      this.page.render();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") restore();
      if (event.key === "Enter") this.commit(word, tokens, field.value.trim());
    });
    field.addEventListener("blur", restore);
    this.editing = { word, restore };
    button.replaceWith(field);
    field.focus();
    field.select();
  }

  /** The change that is proposed with the text; afterwards the way back is. */
  private tryAnother(): void {
    const { state, source } = this.page;
    const [from, to] = state.suggest as [string, string];
    const tokens = sideTokens(source!, state.layer, "cols");
    const word = wordsOf(tokens).find(({ text }) => text === from);
    if (word) this.commit(word, tokens, to, { suggest: [to, from] });
  }

  private commit(word: Word, tokens: string[], now: string, more: Partial<State> = {}): void {
    const { page } = this;
    const text = page.source!.meta.text;
    const place = placeOf(text, word, wordsOf(tokens));
    this.editing?.restore();
    if (!now || now === word.text) return;
    if (place === null) {
      page.failed(new Error(`“${word.text}” is not spelled so in the text: change it in the field above.`));
      return;
    }
    if (this.row) this.before = { ...this.row, from: word.text, to: now };
    page.look({
      ...more,
      text: text.slice(0, place) + now + text.slice(place + word.text.length),
      scene: null,
    });
  }

  private drawArcs(chosen: number | null = this.page.state.key): void {
    const box = this.arcs.getBoundingClientRect();
    const { query } = this.page.state;
    const from = this.sentence.querySelector<HTMLElement>(
      `[data-side]:not([data-side="key"])[data-index="${query}"]`,
    );
    if (!this.row || query === null || !from || !box.width) return this.arcs.replaceChildren();
    const cross = this.element.classList.contains("cross");
    const a = from.getBoundingClientRect();
    const strong = [...this.row.weights.keys()]
      .filter((i) => this.row!.weights[i]! >= SHOWN || i === chosen)
      .sort((x, y) => this.row!.weights[x]! - this.row!.weights[y]!);
    const named = new Set([...(cross || box.width < 700 ? [] : strong.slice(-NAMED)), chosen]);
    const [out, numbers]: [SVGElement[], SVGElement[]] = [[], []];
    for (const index of strong) {
      const to = this.sentence.querySelector<HTMLElement>(
        `[data-side]:not([data-side="query"])[data-index="${index}"]`,
      );
      const weight = this.row.weights[index]!;
      if (!to || Number.isNaN(weight)) continue;
      const b = to.getBoundingClientRect();
      const [x1, x2] = [a.left + a.width / 2 - box.left, b.left + b.width / 2 - box.left];
      const apart = b.top - a.top; // on another line: from edge to edge, as between two sentences
      const across = cross || Math.abs(apart) > a.height;
      const [y1, y2] = !across
        ? [a.top - box.top, b.top - box.top]
        : apart < 0
          ? [a.top - box.top, b.bottom - box.top]
          : [a.bottom - box.top, b.top - box.top];
      const high = across
        ? 0
        : Math.min(
            0.62 * parseFloat(getComputedStyle(from).lineHeight) + 0.09 * Math.abs(x2 - x1),
            Math.max(12, Math.min(y1, y2) - 16),
          );
      const middle = (y1 + y2) / 2;
      const path = across
        ? `M${x1},${y1} C${x1},${middle} ${x2},${middle} ${x2},${y2}`
        : index === query
          ? `M${x1 - 7},${y1} C${x1 - 16},${y1 - 26} ${x1 + 16},${y1 - 26} ${x1 + 7},${y1}`
          : `M${x1},${y1} C${x1},${y1 - 1.3 * high} ${x2},${y2 - 1.3 * high} ${x2},${y2}`;
      const link = svg("path", {
        d: path,
        class: index === chosen ? "arc chosen" : "arc",
        "stroke-width": 1.5 + 11 * weight,
        opacity: 0.25 + 0.75 * Math.sqrt(weight),
        "data-key": index,
      });
      link.addEventListener("click", () => this.page.change({ at: "machine", key: index }));
      out.push(link);
      if (!named.has(index) || (across && index !== chosen)) continue; // between lines there is room for one
      const [tx, ty] = across ? [(x1 + x2) / 2, middle] : [(x1 + x2) / 2, middle - 0.98 * high - 6];
      numbers.push(
        svg("text", { x: tx, y: Math.max(11, ty), class: index === chosen ? "chosen" : "" }, percent(weight)),
      );
    }
    this.arcs.replaceChildren(...out, ...numbers); // no arc over a number
  }
}

/** Where a word stands in the text: its n-th spelling for the n-th word spelled so; letters may differ in case. */
export function placeOf(text: string, word: Word, words: Word[]): number | null {
  const wanted = word.text.toLowerCase();
  const nth = words.filter((other) => other.first < word.first && other.text.toLowerCase() === wanted).length;
  const whole = new RegExp(
    `(?<![\\p{L}\\p{N}])${wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?![\\p{L}\\p{N}])`,
    "giu",
  );
  const places = [...text.matchAll(whole)].map((match) => match.index);
  return places[nth] ?? places[places.length - 1] ?? null;
}
