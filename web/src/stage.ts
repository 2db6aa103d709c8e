// The middle of the page: one head, or two beside each other, as map, lines or text.

import { type Colouring, css, SCALE_NAMES, type ScaleName, type Theme, valueAt } from "./colour";
import { choice, fill, h, number, option, ordinal } from "./dom";
import type { FigurePanel } from "./figure";
import { LinesView, type LinkCount } from "./lines";
import { type Cell, hiddenCss, MapView, type Viewport } from "./mapview";
import { DifferenceTiles } from "./sources";
import { type State, titlesOf } from "./state";
import { gridOf, TextView } from "./textview";
import type { Tile, TileSource } from "./types";
import { labels, sameToken } from "./words";

export interface Shown {
  source: TileSource;
  layer: number;
  head: number;
  title: string;
}

export interface StageEvents {
  change(patch: Partial<State>): void;
  zoomed(view: Viewport | null): void;
  error(error: unknown): void;
}

/** A tooltip at a place of the window; it stays inside the page, wherever that is in its surroundings. */
export function placeTip(tip: HTMLElement, x: number, y: number): void {
  const box = tip.parentElement!.getBoundingClientRect();
  tip.style.left = `${Math.max(0, Math.min(x - box.left, box.width - 310))}px`;
  tip.style.top = `${Math.max(0, Math.min(y - box.top, box.height - 70))}px`;
}

/** The tokens that label one side of a layer. */
export function sideTokens(source: TileSource, layer: number, side: "rows" | "cols"): string[] {
  const meta = source.meta.layers[layer]!;
  const which = meta[side];
  const count = side === "rows" ? meta.queries : meta.keys;
  const tokens = which === null ? [] : source.meta[which];
  return tokens.length === count ? tokens : Array.from({ length: count }, (_, i) => String(i));
}

const size = ({ source, layer }: Shown): string => {
  const { queries, keys } = source.meta.layers[layer]!;
  return `${queries} × ${keys}`;
};

class MapPanel {
  readonly caption = h("div", { class: "caption2" });
  readonly hold = h("div", { class: "hold" });
  readonly element = h("div", { class: "paper mappaper" }, this.caption, this.hold);
  readonly map: MapView;
  private difference: { key: string; source: DifferenceTiles } | null = null;
  private readonly rows = new Map<string, Promise<Float32Array>>();
  source: TileSource | null = null;
  layer = 0;
  head = 0;

  constructor(
    stage: Stage,
    events: StageEvents,
    readonly second: boolean,
  ) {
    this.map = new MapView(this.hold, {
      hover: (cell, at) => stage.hovered(this, cell, at),
      pick: (cell, byKey) => stage.picked(this, cell, byKey),
      moved: (view) => stage.moved(this, view),
      error: events.error,
      drawn: () => stage.recolour(),
    });
  }

  minus(a: Shown, b: Shown): TileSource {
    const key = [a.source.meta.id, a.layer, a.head, b.source.meta.id, b.layer, b.head].join("/");
    if (this.difference?.key !== key)
      this.difference = { key, source: new DifferenceTiles(a.source, b.source, a, b) };
    return this.difference.source;
  }

  show(source: TileSource, at: { layer: number; head: number }, state: State, seed: Tile | null): void {
    if (source !== this.source || at.layer !== this.layer || at.head !== this.head) this.rows.clear();
    this.source = source;
    this.layer = at.layer;
    this.head = at.head;
    this.map.show({
      source,
      layer: at.layer,
      head: at.head,
      valued: state.valued,
      rows: sideTokens(source, at.layer, "rows"),
      cols: sideTokens(source, at.layer, "cols"),
      view: state.zoom,
      seed,
    });
  }

  /** A whole row with all its digits: what the tooltip reads. */
  row(query: number, valued: boolean): Promise<Float32Array> {
    const key = `${query}/${valued}`;
    let found = this.rows.get(key);
    if (!found) {
      const { keys } = this.source!.meta.layers[this.layer]!;
      found = this.source!.tile({
        layer: this.layer,
        head: this.head,
        r0: query,
        r1: query + 1,
        c0: 0,
        c1: keys,
        nRow: 1,
        nCol: keys,
        valued,
      }).then((b) => b.values);
      this.rows.set(key, found);
      if (this.rows.size > 64) this.rows.delete(this.rows.keys().next().value!);
    }
    return found;
  }
}

export class Stage {
  readonly controls = h("div", { class: "controls" });
  readonly element = h("div", { class: "stage" });
  readonly foot = h("div", { class: "foot" });
  readonly tip = h("div", { class: "tip" });
  readonly announced = h("div", { class: "unseen", role: "status" }); // for those who hear the page
  readonly panels: [MapPanel, MapPanel];
  readonly lines: LinesView;
  readonly text: TextView;
  private readonly scroll = h("div", { class: "scroll" });
  private readonly paper = h("div", { class: "paper" }, this.scroll);
  private state!: State;
  private theme: Theme = "light";
  private a: Shown | null = null;
  private b: Shown | null = null;
  private hoverTicket = 0;
  private footTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly events: StageEvents,
    private readonly seedOf: (shown: Shown) => Tile | null,
  ) {
    this.panels = [new MapPanel(this, events, false), new MapPanel(this, events, true)];
    this.lines = new LinesView((chosen) => events.change({ chosen }), events.error);
    this.text = new TextView(
      (index) => events.change(this.state.reading === "looks at" ? { query: index } : { key: index }),
      events.error,
      (reading) => events.change({ reading }),
    );
  }

  get waiting(): boolean {
    return (
      this.state?.view === "map" &&
      this.panels.some((p) => p.element.isConnected && (p.map.pyramid?.waiting ?? 1) > 0)
    );
  }

  private get differing(): boolean {
    if (!this.a || !this.b || !this.state.difference) return false;
    const [x, y] = [this.a.source.meta.layers[this.a.layer]!, this.b.source.meta.layers[this.b.layer]!];
    return x.queries === y.queries && x.keys === y.keys;
  }

  show(
    state: State,
    theme: Theme,
    a: Shown,
    b: Shown | null,
    comparing: HTMLElement | null,
    limit: number | null,
  ): void {
    const shown = (of: State | undefined) =>
      of && [of.view, of.layer, of.head, of.layer2, of.head2, of.text].join();
    if (shown(this.state) !== shown(state)) this.tip.replaceChildren(); // it was of something else
    this.state = state;
    this.theme = theme;
    this.a = a;
    this.b = b;
    this.drawControls(comparing);
    const { valued } = state;
    if (state.view === "map") {
      const [first, second] = this.panels;
      first.map.selected =
        state.query !== null && state.key !== null ? { row: state.query, col: state.key } : null;
      first.map.limit = limit;
      first.map.row = state.query;
      this.place(b ? [first.element, second.element] : [first.element]);
      first.show(a.source, a, state, this.seedOf(a));
      first.caption.hidden = !b;
      fill(first.caption, h("b", {}, "A"), a.title);
      first.caption.title = a.title;
      if (b) {
        const differing = this.differing;
        second.map.selected = first.map.selected && this.partner(first, first.map.selected);
        second.show(
          differing ? second.minus(a, b) : b.source,
          differing ? a : b,
          state,
          differing ? null : this.seedOf(b),
        );
        fill(
          second.caption,
          h("b", {}, differing ? "A − B" : "B"),
          differing
            ? `orange: A is larger · blue: B is larger · B: ${b.title}`
            : state.difference
              ? `No difference: A is ${size(a)}, B is ${size(b)}. Only maps of one size can be subtracted. ${b.title}`
              : b.title,
        );
        second.caption.title = b.title;
      }
      this.recolour();
    } else {
      this.place([this.paper]);
      const rows = sideTokens(a.source, a.layer, "rows");
      const cols = sideTokens(a.source, a.layer, "cols");
      if (state.view === "lines") {
        fill(this.scroll, this.lines.element);
        const heads = [
          { layer: a.layer, head: a.head },
          ...state.more.map(([layer, head]) => ({ layer, head })),
        ];
        void this.lines.show(
          a.source,
          {
            heads,
            words: state.words,
            noSpecial: state.noSpecial,
            chosen: state.chosen,
            links: state.links,
            near: state.chosen[0] ?? state.query,
            valued,
            theme,
          },
          rows,
          cols,
        );
      } else {
        fill(this.scroll, this.text.element);
        this.text.show(
          a.source,
          a.layer,
          a.head,
          valued,
          rows,
          cols,
          state.reading === "looks at" ? state.query : state.key,
          state.reading === "looks at" ? state.key : state.query,
          state.reading,
          this.colouring(false, 1),
        );
      }
      this.drawFoot();
    }
  }

  /** What the maps show, for a figure. */
  figure(): FigurePanel[] {
    return this.panels
      .filter((panel) => panel.element.isConnected && panel.source)
      .map((panel, i) => ({
        title: i === 0 ? this.a!.title : this.differing ? `A − B: ${this.b!.title}` : this.b!.title,
        source: panel.source!,
        layer: panel.layer,
        head: panel.head,
        valued: this.state.valued,
        rect: panel.map.inView,
        colouring: panel.map.colouring,
        clipped: this.state.range === "own" && (panel.map.pyramid?.clipped ?? false),
        rows: labels(sideTokens(panel.source!, panel.layer, "rows")),
        cols: labels(sideTokens(panel.source!, panel.layer, "cols")),
      }));
  }

  private place(children: HTMLElement[]): void {
    const now = [...this.element.children];
    if (now.length !== children.length || now.some((c, i) => c !== children[i]))
      this.element.replaceChildren(...children);
  }

  private drawControls(comparing: HTMLElement | null): void {
    const { state } = this;
    const change = this.events.change;
    const picture = gridOf(this.a!.source, this.a!.layer) !== null;
    const box = (name: string, on: boolean, set: (value: boolean) => void, title = "", disabled = false) =>
      h(
        "label",
        { class: "inline", title },
        h("input", {
          type: "checkbox",
          checked: on,
          disabled,
          onchange: (event: Event) => set((event.target as HTMLInputElement).checked),
        }),
        name,
      );
    fill(
      this.controls,
      choice("view", { ...titlesOf("atlas"), ...(picture ? { text: "Picture" } : {}) }, state.view, (view) =>
        change({ view }),
      ),
      state.view !== "lines" &&
        h(
          "label",
          { class: "inline" },
          "colours",
          h(
            "select",
            {
              "aria-label": "colour scale",
              onchange: (event: Event) =>
                change({ scale: (event.target as HTMLSelectElement).value as ScaleName }),
            },
            Object.entries(SCALE_NAMES).map(([value, label]) =>
              h("option", { value, selected: value === state.scale }, label),
            ),
          ),
        ),
      state.view === "map" &&
        box(
          "up to 1",
          state.range === "one",
          (on) => change({ range: on ? "one" : "own" }),
          "The last colour is a weight of 1, not the head's largest: colours of heads can be compared.",
        ),
      box(
        "× value length",
        state.valued,
        (valued) => change({ valued }),
        "Weight times the length of the value vector it carries",
        !this.a!.source.meta.layers[this.a!.layer]!.values,
      ),
      state.view === "lines" && box("words", state.words, (words) => change({ words, chosen: [] })),
      state.view === "lines" &&
        box("hide special tokens and sinks", state.noSpecial, (noSpecial) => change({ noSpecial })),
      state.view === "lines" &&
        h(
          "select",
          {
            "aria-label": "links drawn",
            onchange: (event: Event) =>
              change({ links: (event.target as HTMLSelectElement).value as LinkCount }),
          },
          option("auto", "links: as fits", state.links === "auto"),
          option("all", "all links", state.links === "all"),
          option("3", "3 strongest of each", state.links === "3"),
          option("1", "strongest of each", state.links === "1"),
        ),
      state.view === "map" && comparing,
      state.view === "map" &&
        h(
          "span",
          { class: "zoomers" },
          h(
            "button",
            { type: "button", "aria-label": "zoom in", onclick: () => this.panels[0].map.zoom(1.6) },
            "+",
          ),
          h(
            "button",
            { type: "button", "aria-label": "zoom out", onclick: () => this.panels[0].map.zoom(1 / 1.6) },
            "−",
          ),
          h(
            "button",
            { type: "button", "aria-label": "show all", onclick: () => this.panels[0].map.fit() },
            "all",
          ),
        ),
    );
  }

  private colouring(diverging: boolean, top: number): Colouring {
    return { scale: this.state.scale, theme: this.theme, top, diverging };
  }

  private tops(): [number, number] {
    const seen = this.panels.map((p) => p.map.pyramid?.span ?? 0) as [number, number];
    const differing = this.differing;
    if (this.state.range === "one" && !this.state.valued) return [1, 1];
    const both = Math.max(seen[0], this.b && !differing ? seen[1] : 0) || 1;
    return [both, differing ? seen[1] || 1 : both];
  }

  /** The colours follow the largest weight seen so far. */
  recolour(): void {
    const tops = this.tops();
    this.panels.forEach((panel, i) => {
      if (!panel.element.isConnected) return;
      panel.map.colouring = this.colouring(i === 1 && this.differing, tops[i]!);
      panel.map.invalidate();
    });
    this.drawFoot();
  }

  private bar(how: Colouring, name: string, clipped = false): HTMLElement {
    const canvas = h("canvas", { width: 150, height: 12, "aria-hidden": "true" });
    const context = canvas.getContext("2d")!;
    for (let x = 0; x < 150; x++) {
      const part = x / 149;
      context.fillStyle = css(
        how.diverging ? Math.sign(part - 0.5) * valueAt(Math.abs(2 * part - 1), how) : valueAt(part, how),
        how,
      );
      context.fillRect(x, 0, 1, 12);
    }
    const middle = how.diverging ? "0" : number(valueAt(0.5, how));
    return h(
      "span",
      { class: "scalebar" },
      name,
      h("span", { class: "num" }, how.diverging ? number(-how.top) : "0"),
      canvas,
      h("span", { class: "num" }, number(how.top) + (clipped ? " and above" : "")),
      h("span", { class: "quiet" }, `(middle ${middle}, ${SCALE_NAMES[how.scale]})`),
    );
  }

  private drawFoot(): void {
    const [top, second] = this.tops();
    const hidden = h("span", { class: "swatch" });
    hidden.style.backgroundColor = hiddenCss(this.theme);
    const causal = h("span", { class: "scalebar" }, hidden, "masked: not visible to this query");
    if (this.state.view === "map") {
      fill(
        this.foot,
        this.bar(
          this.colouring(false, top),
          this.state.valued ? "weight × |v|" : "weight",
          this.state.range === "own" &&
            this.panels.some((p, i) => (i === 0 || this.b !== null) && p.map.pyramid?.clipped),
        ),
        this.differing && this.bar(this.colouring(true, second), "A − B"),
        causal,
        h("span", {}, this.panels[0].map.grain),
      );
    } else if (this.state.view === "text" && gridOf(this.a!.source, this.a!.layer)) {
      fill(
        this.foot,
        h(
          "span",
          {},
          `Lit is what is looked at: light is the weight over the largest one (${SCALE_NAMES[this.state.scale]}).`,
        ),
      );
    } else if (this.state.view === "text") {
      fill(this.foot, this.bar(this.colouring(false, 1), "share of the largest"), causal);
    } else
      fill(
        this.foot,
        h("span", {}, "Width and strength of a link are its weight over the largest weight shown."),
      );
  }

  /** The cell of the other panel that means the same: the same place, or the same words in another text. */
  private partner(from: MapPanel, cell: Cell): Cell | null {
    const [x, y] = from.second ? [this.b, this.a] : [this.a, this.b];
    if (!x || !y) return null;
    if (this.differing) return cell;
    const row = sameToken(
      sideTokens(x.source, x.layer, "rows"),
      cell.row,
      sideTokens(y.source, y.layer, "rows"),
    );
    const col = sameToken(
      sideTokens(x.source, x.layer, "cols"),
      cell.col,
      sideTokens(y.source, y.layer, "cols"),
    );
    const same = x.source.meta.tokens.join("\u0000") === y.source.meta.tokens.join("\u0000");
    if (same) return cell;
    return row < 0 || col < 0 ? null : { row, col };
  }

  /** Panning draws the maps and nothing else: the page around them stays as it is. */
  moved(panel: MapPanel, view: Viewport | null): void {
    const other = this.panels[panel.second ? 0 : 1];
    if (this.b) {
      if (view) other.map.setView(view, false);
      else other.map.fit(false);
    }
    this.events.zoomed(view);
    clearTimeout(this.footTimer);
    this.footTimer = setTimeout(() => this.drawFoot(), 150);
  }

  picked(panel: MapPanel, cell: Cell, byKey: boolean): void {
    const own = panel.second ? this.partner(panel, cell) : cell;
    if (own) this.events.change({ query: own.row, key: own.col });
    if (byKey)
      void this.read(panel, cell)
        .then(([value, where]) => (this.announced.textContent = `${value}, ${where}`))
        .catch(this.events.error);
  }

  /** A cell in words: its number, and between which tokens it is. */
  private async read(panel: MapPanel, cell: Cell): Promise<[string, string]> {
    const value = (await panel.row(cell.row, this.state.valued))[cell.col]!;
    const name = (side: "rows" | "cols", index: number) =>
      labels(sideTokens(panel.source!, panel.layer, side))[index]!;
    return [
      Number.isNaN(value) ? "masked" : number(value),
      `query ${cell.row} “${name("rows", cell.row)}” → key ${cell.col} “${name("cols", cell.col)}”`,
    ];
  }

  hovered(panel: MapPanel, cell: Cell | null, at: { x: number; y: number }): void {
    const other = this.panels[panel.second ? 0 : 1];
    if (this.b) other.map.highlight(cell && this.partner(panel, cell));
    const ticket = ++this.hoverTicket;
    if (!cell || !panel.source) {
      this.tip.replaceChildren();
      return;
    }
    void Promise.all([panel.row(cell.row, this.state.valued), this.read(panel, cell)])
      .then(([values, [said, where]]) => {
        if (ticket !== this.hoverTicket) return;
        const value = values[cell.col]!;
        const hidden = Number.isNaN(value);
        const rank = values.reduce((n, v) => n + (v > value ? 1 : 0), 1);
        const what =
          panel.second && this.differing ? "difference" : this.state.valued ? "weight × |v|" : "weight";
        fill(
          this.tip,
          h(
            "div",
            {},
            h("b", { class: "num", "data-value": value }, said),
            hidden ? "" : ` ${what}, ${rank === 1 ? "the largest" : ordinal(rank)} in its row`,
          ),
          h("div", {}, where),
        );
        placeTip(this.tip, at.x + 16, at.y + 16);
      })
      .catch(this.events.error);
  }
}
