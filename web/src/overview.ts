// All heads at a glance: a small picture of each, coloured by its label, filled in one after the other.

import { css, paint, type Theme } from "./colour";
import { fill, h } from "./dom";
import { LABELS } from "./registry";
import { aborted, type Effects, type HeadFacts, type LayerMeta, type Tile, type TileSource } from "./types";

export interface Place {
  layer: number;
  head: number;
}

interface Shown {
  source: TileSource;
  facts: HeadFacts | null;
  chosen: Place;
  second: Place | null;
  more: [number, number][];
  off: [number, number][];
  sort: string;
  filter: string;
  theme: Theme;
  effects: Effects | null; // shown instead of the weights
  scale: "one" | "own"; // of the small pictures
}

interface Picture {
  tile: Tile;
  top: number; // its largest weight
}

const SMALL = 40; // cells of a small picture
const AT_ONCE = 1 << 26; // weights that the pictures of one question are made of
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

export class Overview {
  readonly element = h("div", { class: "grid", role: "grid", tabIndex: 0 });
  private thumbs = new Map<string, HTMLButtonElement>();
  private order: Place[] = [];
  private columns = 1;
  private source: TileSource | null = null;
  private stopper = new AbortController();
  private built = "";
  private pictures = new Map<string, Picture>();
  private scale: "one" | "own" = "one";
  private largest = 0; // weight of all heads so far

  constructor(
    private readonly pick: (place: Place, extra: boolean) => void,
    private readonly hover: (place: Place | null, at: HTMLElement) => void,
    private readonly busy: () => boolean,
    name = "All heads: rows are layers. Arrow keys move.",
  ) {
    this.element.setAttribute("aria-label", name);
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  colourOf(label: string): string {
    return LABELS[label]?.color ?? "#8a909c";
  }

  private chosen: Place = { layer: 0, head: 0 };

  /** The small picture of a head of this trace, where it is there. */
  picture(source: TileSource, { layer, head }: Place): Tile | null {
    return source === this.source ? (this.pictures.get(`${layer}.${head}`)?.tile ?? null) : null;
  }

  show(what: Shown): void {
    this.chosen = what.chosen;
    this.scale = what.scale;
    const { facts, source } = what;
    if (source !== this.source) {
      this.stopper.abort();
      this.stopper = new AbortController();
      this.pictures = new Map();
      this.largest = 0;
      delete this.element.dataset["filled"];
    }
    const key = JSON.stringify([source.meta.id, what.sort, what.filter, !!facts, what.theme, what.scale]);
    if (key !== this.built || source !== this.source) {
      this.built = key;
      const fresh = source !== this.source;
      this.source = source;
      this.build(what);
      if (fresh) void this.load(source, what.theme, this.stopper.signal);
    }
    const all = (what.effects?.values ?? []).flat().map((value) => Math.abs(value ?? 0));
    const largest = Math.max(1e-12, ...all);
    this.element.classList.toggle("tinted", what.effects !== null);
    for (const [name, thumb] of this.thumbs) {
      const [layer, head] = name.split(".").map(Number) as [number, number];
      const effect = what.effects?.values[layer]?.[head];
      const how = { scale: "sqrt", theme: what.theme, top: largest, diverging: true } as const;
      thumb.style.backgroundColor = typeof effect === "number" ? css(effect, how) : "";
      const is = (place: Place | null) => place !== null && place.layer === layer && place.head === head;
      thumb.classList.toggle("chosen", is(what.chosen));
      thumb.classList.toggle("second", is(what.second));
      thumb.classList.toggle(
        "also",
        what.more.some(([l, x]) => l === layer && x === head),
      );
      thumb.classList.toggle(
        "off",
        what.off.some(([l, x]) => l === layer && x === head),
      );
      thumb.setAttribute("aria-selected", String(is(what.chosen)));
      if (is(what.chosen)) this.reveal(thumb);
    }
  }

  /** Scroll the grid, and nothing around it, until a thumb is in view. */
  private reveal(thumb: HTMLElement): void {
    const [box, at] = [this.element.getBoundingClientRect(), thumb.getBoundingClientRect()];
    if (at.top < box.top) this.element.scrollTop -= box.top - at.top + 6;
    else if (at.bottom > box.bottom) this.element.scrollTop += at.bottom - box.bottom + 6;
  }

  private build({ source, facts, sort, filter, theme }: Shown): void {
    const all: Place[] = source.meta.layers.flatMap((layer, index) =>
      Array.from({ length: layer.heads }, (_, head) => ({ layer: index, head })),
    );
    const matching = all.filter((p) => !filter || facts?.labels[p.layer]?.[p.head]?.label === filter);
    const values = facts?.measures[sort]?.values;
    this.order = values
      ? [...matching].sort((a, b) => (values[b.layer]?.[b.head] ?? -1) - (values[a.layer]?.[a.head] ?? -1))
      : matching;
    this.columns = Math.max(...source.meta.layers.map((l) => l.heads));
    const byLayer = !values && !filter;
    this.element.style.setProperty("--columns", String(this.columns));
    this.element.classList.toggle("dense", this.columns > 12);
    this.element.classList.toggle("flat", !byLayer);
    this.thumbs.clear();
    const rows: HTMLElement[] = [];
    const twoSided = source.meta.kind === "encoder-decoder";
    this.element.classList.toggle("named", twoSided);
    let row: HTMLElement | null = null;
    this.order.forEach((place, at) => {
      if (!row || (byLayer ? place.head === 0 : at % this.columns === 0)) {
        const name = source.meta.layers[place.layer]!;
        row = h(
          "div",
          { role: "row", class: "gridrow" },
          byLayer && h("span", { class: "rowname", title: name.label }, shortName(name, twoSided)),
        );
        rows.push(row);
      }
      row.appendChild(this.thumb(place, facts, theme, values?.[place.layer]?.[place.head] ?? null));
    });
    fill(this.element, rows.length ? rows : h("p", { class: "quiet" }, "No head has this label."));
  }

  private thumb(
    place: Place,
    facts: HeadFacts | null,
    theme: Theme,
    value: number | null,
  ): HTMLButtonElement {
    const name = `${place.layer}.${place.head}`;
    const label = facts?.labels[place.layer]?.[place.head]?.label;
    const thumb = h("button", {
      type: "button",
      class: "thumb",
      role: "gridcell",
      tabIndex: -1,
      "data-head": name,
      "aria-label": `layer ${place.layer}, head ${place.head}${label ? `, ${label}` : ""}${value === null ? "" : `, ${value.toFixed(3)}`}`,
      onclick: (event: MouseEvent) => this.pick(place, event.shiftKey || event.ctrlKey || event.metaKey),
      onpointerenter: () => this.hover(place, thumb),
      onpointerleave: () => this.hover(null, thumb),
    });
    if (label) thumb.style.setProperty("--label", this.colourOf(label));
    const picture = this.pictures.get(name);
    if (picture) thumb.appendChild(this.painted(picture, theme));
    this.thumbs.set(name, thumb);
    return thumb;
  }

  /** The chosen head first, then its layer, then the others. Short texts need one question for all heads; those
   * of long ones come a few at a time, and none is asked for while the map waits. */
  private async load(source: TileSource, theme: Theme, signal: AbortSignal): Promise<void> {
    // First the chosen head, then those in sight, then the rest.
    const box = this.element.getBoundingClientRect();
    const inSight = ({ layer, head }: Place) => {
      const at = this.thumbs.get(`${layer}.${head}`)?.getBoundingClientRect();
      return at !== undefined && at.bottom > box.top && at.top < Math.min(box.bottom, innerHeight);
    };
    const near = (p: Place) =>
      p.layer === this.chosen.layer && p.head === this.chosen.head ? 0 : inSight(p) ? 1 : 2;
    const queue = source.meta.layers
      .flatMap((l, layer) => Array.from({ length: l.heads }, (_, head) => ({ layer, head })))
      .sort((a, b) => near(a) - near(b));
    const cost = Math.max(...source.meta.layers.map((l) => l.queries * l.keys));
    const many = Math.max(1, Math.floor(AT_ONCE / cost));
    while (this.busy() && !signal.aborted) await pause(20);
    // The map is on the screen before anything else is computed.
    await Promise.race([new Promise(requestAnimationFrame).then(() => pause(0)), pause(200)]);
    while (queue.length && !signal.aborted) {
      while (this.busy() && !signal.aborted) await pause(40);
      const some = queue.splice(0, many);
      try {
        const heads = some.map(({ layer, head }): [number, number] => [layer, head]);
        const tiles = await source.small(heads, SMALL, signal);
        some.forEach((place, i) => this.filled(place, tiles[i]!, theme));
      } catch (error) {
        if (aborted(error)) return;
        for (const { layer, head } of some) this.thumbs.get(`${layer}.${head}`)?.classList.add("failed");
      }
    }
    if (!signal.aborted) this.element.dataset["filled"] = "all";
  }

  private filled({ layer, head }: Place, tile: Tile, theme: Theme): void {
    let top = 1e-9;
    for (const v of tile.values) if (v > top) top = v;
    const picture = { tile, top };
    this.pictures.set(`${layer}.${head}`, picture);
    // With one scale for all, a larger weight than any before makes all the others lighter.
    if (this.scale === "one" && top > this.largest * 1.02) {
      this.largest = top;
      this.repaint(theme);
    } else this.thumbs.get(`${layer}.${head}`)?.replaceChildren(this.painted(picture, theme));
  }

  private painted({ tile, top }: Picture, theme: Theme): HTMLCanvasElement {
    const most = this.scale === "one" ? Math.max(top, this.largest) : top;
    return paint(tile, { scale: "sqrt", theme, top: most, diverging: false });
  }

  private repaint(theme: Theme): void {
    for (const [name, picture] of this.pictures)
      this.thumbs.get(name)?.replaceChildren(this.painted(picture, theme));
  }

  /** Resolves once every head has its picture. */
  async whenFilled(): Promise<void> {
    while (this.element.dataset["filled"] !== "all") await new Promise((resolve) => setTimeout(resolve, 100));
  }

  /** Arrow keys choose the next head, in the order that is shown. */
  key(event: KeyboardEvent): void {
    const at = this.order.findIndex((p) => p.layer === this.chosen.layer && p.head === this.chosen.head);
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this.columns,
      ArrowDown: this.columns,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = this.order[Math.min(this.order.length - 1, Math.max(0, at + step))];
    if (next) this.pick(next, event.shiftKey);
  }
}

/** A layer's number; with an encoder and a decoder, which of them, and × for cross-attention. */
function shortName({ stack, index, kind }: LayerMeta, twoSided: boolean): string {
  const side = twoSided ? (stack.includes("decoder") ? "d" : "e") : "";
  return `${side}${index ?? ""}${kind === "cross" ? "×" : ""}`;
}
