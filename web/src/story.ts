// The story: a sentence across the page, one token chosen, and an arc to each token it looks at.

import type { PageContext } from "./context";
import { fill, h, percent, svg } from "./dom";
import { PredictionPanel } from "./prediction";
import { sideTokens } from "./stage";
import type { State } from "./state";
import { gridOf, TextView } from "./textview";
import type { Link, TileSource } from "./types";
import { WhySaid } from "./whysaid";
import {
  characters,
  isSpecial,
  label,
  labels,
  linkNames,
  name,
  rightToLeft,
  spelling,
  type Word,
  wordsOf,
} from "./words";

const SHOWN = 0.02; // arcs of smaller weights are left out; the sentence below still has their number
const WINDOW = 90; // tokens of a long text that are shown around the chosen one
const NAMED = 4; // arcs that carry their number
const STRIP = 8; // other heads of a word

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
  "state" | "source" | "facts" | "theme" | "backend" | "change" | "look" | "failed" | "render" | "drawn"
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
  private readonly machine = h("button", { type: "button" });
  private readonly cutter = h("button", { type: "button" });
  private readonly undo = h("button", { type: "button" }, "Undo all changes");
  private readonly strip = h("div", { class: "strip", role: "group" });
  readonly prediction: PredictionPanel;
  private readonly why: WhySaid;
  private listed = ""; // the word whose links are in the strip
  private readonly trying = h("button", { type: "button", class: "primary" });
  private ticket = 0;
  private before: Before | null = null;
  private editing: { word: Word; restore: () => void } | null = null;
  private row: Row | null = null;
  private best: number | null = null; // the key that the chosen query looks at most
  private drawn = "";

  constructor(
    private readonly page: Needs,
    private readonly guessed: (token: number) => boolean, // true: a click was a guess, and nothing else
  ) {
    this.why = new WhySaid(page, () => this.drawArcs());
    this.prediction = new PredictionPanel(page, () => this.why.ask());
    this.cutter.addEventListener("click", () => this.cut());
    this.undo.addEventListener("click", () => page.change({ off: [], cut: [] }));
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
      h("div", { class: "actions tool" }, this.trying, this.machine, this.cutter, this.undo),
      this.strip,
      this.prediction.element,
      this.why.element,
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
        ? "Click a word to see what it looks at, and again to change it. Click an arc to choose a link."
        : "Click a word to see what it looks at. A saved page has no model: `regard look` lets you change words.";
    this.prediction.show(source);
    this.why.show(source);
    this.undo.hidden = !this.page.backend || (!this.page.state.off.length && !this.page.state.cut.length);
    void this.others(source);
    const [word, instead] = this.page.state.suggest;
    this.trying.hidden = !this.page.backend || !word || !wordsOf(cols).some(({ text }) => text === word);
    this.trying.textContent = `Change ${word} to ${instead}`;
    if (query === null) {
      this.row = null;
      fill(this.said, this.page.facts ? "" : "Measuring what each head does…");
      this.machine.hidden = true;
      this.cutter.hidden = true;
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
      this.best = best;
      if (grid) this.draw(source, rows, cols, at);
      const names = linkNames(rows, cols, query, at);
      const weight = values[at]!;
      const masked = Number.isNaN(weight);
      const isCut = this.page.state.cut.some((link) => link.join() === [layer, head, query, at].join());
      fill(
        this.said,
        `Head ${layer}.${head} `,
        masked ? "masks " : weight >= 0.1 || at === best ? "links " : "hardly links ",
        masked ? name(names.key, "key") : name(names.query, "query"),
        masked ? " from " : " to ",
        masked ? name(names.query, "query") : name(names.key, "key"),
        masked ? "." : `: ${percent(weight)}.`,
        isCut ? " This link is cut: the model ran without it." : "",
        at !== best && !masked
          ? [" Its strongest link is ", name(labels(cols)[best]!), ` (${percent(values[best]!)}).`]
          : "",
      );
      this.said.dataset["weight"] = String(weight);
      this.machine.hidden = masked;
      fill(this.machine, `Where does ${percent(weight)} come from?`);
      this.cutter.hidden =
        masked ||
        !this.page.backend ||
        source.meta.kind === "encoder-decoder" ||
        source.meta.generated !== null;
      this.cutter.textContent = isCut ? "Undo this cut" : "Cut this link";
      this.compareWithBefore();
      this.drawArcs(at);
    } catch (error) {
      this.page.failed(error);
    }
  }

  /** Run the model without the chosen link, or with it again. */
  private cut(): void {
    const { layer, head, query, key, cut } = this.page.state;
    const at = key ?? this.best;
    if (query === null || at === null) return;
    const link: Link = [layer, head, query, at];
    const has = cut.some((one) => one.join() === link.join());
    const left = cut.filter((one) => one.join() !== link.join());
    this.page.change({ key: at, cut: has ? left : [...cut, link] });
  }

  /** The strongest links of this word over all heads: from here the story goes on. */
  private async others(source: TileSource): Promise<void> {
    const { layer, head, query } = this.page.state;
    const wanted = JSON.stringify([source.meta.id, source.meta.layers[layer]!.rows, query]);
    const mark = () =>
      this.strip.querySelectorAll("button").forEach((one) => {
        one.setAttribute("aria-pressed", String(one.dataset["head"] === `${layer}.${head}`));
      });
    if (wanted === this.listed) return mark();
    this.listed = wanted;
    this.strip.hidden = query === null;
    if (query === null) return;
    try {
      const links = await source.links(query, layer);
      if (wanted !== this.listed) return;
      const word = name(labels(sideTokens(source, layer, "rows"))[query]!, "query");
      fill(
        this.strip,
        h("span", { class: "quiet" }, "Other heads for ", word, ":"),
        links.slice(0, STRIP).map((link) =>
          h(
            "button",
            {
              type: "button",
              "data-head": `${link.layer}.${link.head}`,
              title: `head ${link.layer}.${link.head}; looking at everything alike would give ${percent(link.even)}`,
              onclick: () => this.page.change({ layer: link.layer, head: link.head, query, key: link.key }),
            },
            h("span", { class: "quiet" }, `${link.layer}.${link.head} `),
            name(labels(sideTokens(source, link.layer, "cols"))[link.key]!, "key"),
            ` ${percent(link.weight)}`,
          ),
        ),
      );
      mark();
    } catch (error) {
      this.page.failed(error);
    }
  }

  /** While a question is open, what it asks about is not shown; `points` is what a caption speaks of. */
  stage(asking: boolean, points: string | null): void {
    this.element.classList.toggle("asking", asking);
    this.element.dataset["points"] = points ?? "";
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
        name(token),
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
        {
          class: `running ${side}`,
          dir: rightToLeft(tokens) ? "rtl" : "ltr",
          "aria-label": side === "key" ? "what was read" : "the text",
        },
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
    if (side !== "query" && this.guessed(index)) return;
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

  /** Read the text with one word in the place of another. */
  change(from: string, to: string, scene: number | null): void {
    const tokens = sideTokens(this.page.source!, this.page.state.layer, "cols");
    const word = wordsOf(tokens).find(({ text }) => text === from);
    if (word) this.commit(word, tokens, to, { scene });
    else this.page.failed(new Error(`There is no “${from}” in this text.`));
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
      scene: null,
      ...more,
      text: text.slice(0, place) + now + text.slice(place + word.text.length),
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
    const { layer, head, cut } = this.page.state;
    const cuts = new Set(
      cut.filter(([l, x, q]) => l === layer && x === head && q === query).map(([, , , k]) => k),
    );
    const [out, numbers]: [
      SVGElement[],
      { x: number; y: number; said: string; first: boolean; size: number }[],
    ] = [[], []];
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
        class: `arc${index === chosen ? " chosen" : ""}${cuts.has(index) ? " cut" : ""}`,
        "stroke-width": 1.5 + 11 * weight,
        opacity: 0.25 + 0.75 * Math.sqrt(weight),
        "data-key": index,
      });
      link.addEventListener("click", () => this.page.change({ key: index }));
      out.push(link);
      if (!named.has(index) || (across && index !== chosen)) continue; // between lines there is room for one
      const [tx, ty] = across ? [(x1 + x2) / 2, middle] : [(x1 + x2) / 2, middle - 0.98 * high - 6];
      numbers.push({
        x: tx!,
        y: Math.max(11, ty!),
        said: percent(weight),
        first: index === chosen,
        size: weight,
      });
    }
    // No arc over a number, and no number over another: the chosen one stays, then the larger.
    const letter = 0.62 * Math.max(12, 0.42 * parseFloat(getComputedStyle(from).fontSize));
    const placed: typeof numbers = [];
    for (const one of numbers.sort((x, y) => Number(y.first) - Number(x.first) || y.size - x.size)) {
      const apart = (other: typeof one) =>
        Math.abs(one.x - other.x) > (letter * (one.said.length + other.said.length)) / 2 + 4 ||
        Math.abs(one.y - other.y) > 2.2 * letter;
      if (placed.every(apart)) placed.push(one);
    }
    const texts = placed.map(({ x, y, said, first }) =>
      svg("text", { x, y, class: first ? "chosen" : "" }, said),
    );
    this.arcs.replaceChildren(...this.whyArcs(box), ...out, ...texts);
  }

  /** Links of other heads that the prediction rests on, under those of this one. */
  private whyArcs(box: DOMRect): SVGElement[] {
    const { source } = this.page;
    const place = (index: number | null) =>
      this.sentence.querySelector<HTMLElement>(`[data-index="${index}"]`)?.getBoundingClientRect();
    return (source ? this.why.arcs(source) : []).flatMap((one) => {
      const [a, b] = [place(one.query), place(one.key)];
      if (!a || !b || Math.abs(a.top - b.top) > a.height) return [];
      const [x1, x2, y] = [
        a.left + a.width / 2 - box.left,
        b.left + b.width / 2 - box.left,
        a.bottom - box.top,
      ];
      const low = Math.min(60, 14 + 0.12 * Math.abs(x2 - x1));
      const path = svg("path", {
        d: `M${x1},${y} C${x1},${y + low} ${x2},${y + low} ${x2},${y}`,
        class: `arc because ${one.effect < 0 ? "helps" : "hinders"}`,
        "stroke-width": 2 + 3 * Math.min(1, Math.abs(one.effect)),
        "data-because": `${one.layer}.${one.head}`,
      });
      const { layer, head, query, key } = one;
      path.addEventListener("click", () =>
        this.page.change({ layer: layer!, head: head!, query: query!, key: key! }),
      );
      return [path];
    });
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
