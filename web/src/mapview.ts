// The heat map: rows are queries, columns keys. From the whole of it down to single cells with their numbers.

import { type Colouring, HIDDEN, inkOn, paint } from "./colour";
import { Pyramid, type Rect } from "./tiles";
import type { Tile, TileSource } from "./types";
import { labels } from "./words";

export interface Viewport {
  x: number; // the key at the left edge
  y: number; // the query at the top edge
  px: number; // pixels a cell
}

export interface Cell {
  row: number;
  col: number;
}

export interface MapEvents {
  hover(cell: Cell | null, at: { x: number; y: number }): void;
  pick(cell: Cell, byKey: boolean): void;
  moved(view: Viewport | null): void; // null: all of it
  error(error: unknown): void;
  drawn(): void;
}

/** What a map shows. `seed` is a small picture of it that is there already, seen until the tiles come. */
export interface MapContent {
  source: TileSource;
  layer: number;
  head: number;
  valued: boolean;
  rows: string[];
  cols: string[];
  view: Viewport | null;
  seed: Tile | null;
}

const MOST_PX = 72;
const NUMBERS_FROM = 36; // pixels of a cell that has room for its number
const GRID_FROM = 9;
const KEPT = 6; // heads whose tiles stay: going back to one asks for nothing
const MINIMAP = 0.2; // of the shorter side of the map

export class MapView {
  readonly canvas = document.createElement("canvas");
  pyramid: Pyramid | null = null;
  private before: Pyramid | null = null; // shown faintly until the new one has something
  private seed: Tile | null = null;
  private readonly kept = new Map<string, Pyramid>();
  private rows: string[] = [];
  private cols: string[] = [];
  private view: Viewport = { x: 0, y: 0, px: 1 };
  private fitted = true;
  private hovered: Cell | null = null;
  selected: Cell | null = null;
  row: number | null = null; // the query whose row is meant, where no cell is selected
  limit: number | null = null; // rows from here on are not written yet
  colouring: Colouring = { scale: "sqrt", theme: "light", top: 1, diverging: false };
  catchesWheel = true; // false in a notebook: there the wheel scrolls, unless the map was clicked
  private left = 90;
  private above = 80;
  private unit = 1; // the size of letters over the usual one
  private frame = 0;
  private width = 0;
  private height = 0;
  frames = 0; // drawn so far: what the bench counts

  constructor(
    private readonly host: HTMLElement,
    private readonly events: MapEvents,
  ) {
    this.canvas.className = "map";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    host.appendChild(this.canvas);
    new ResizeObserver(() => this.resize()).observe(host);
    this.listen();
  }

  show({ source, layer, head, valued, rows, cols, view, seed }: MapContent): void {
    const now = this.pyramid;
    if (!now || now.source !== source || now.layer !== layer || now.head !== head || now.valued !== valued) {
      now?.stop();
      const meta = source.meta.layers[layer]!;
      const same = now && now.meta.queries === meta.queries && now.meta.keys === meta.keys;
      this.before = same && now.ready ? now : same ? this.before : null;
      this.pyramid = this.pyramidOf(source, layer, head, valued);
    }
    this.seed = valued ? null : seed;
    this.rows = labels(rows);
    this.cols = labels(cols);
    this.margins();
    if (view) this.setView(view, false);
    else this.fit(false);
    const meta = source.meta.layers[layer]!;
    this.canvas.setAttribute(
      "aria-label",
      `Heat map of attention weights, ${meta.name}, head ${head}: ${meta.queries} queries (rows) by ${meta.keys} keys (columns). Arrow keys move the chosen cell, plus and minus zoom.`,
    );
    this.invalidate();
  }

  private pyramidOf(source: TileSource, layer: number, head: number, valued: boolean): Pyramid {
    const key = `${layer}/${head}/${valued}`;
    if ([...this.kept.values()].some((pyramid) => pyramid.source !== source)) this.kept.clear();
    const found =
      this.kept.get(key) ??
      new Pyramid(
        source,
        layer,
        head,
        valued,
        () => {
          this.events.drawn();
          this.invalidate();
        },
        (error) => this.events.error(error),
      );
    this.kept.delete(key);
    this.kept.set(key, found);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value!);
    return found;
  }

  private margins(): void {
    this.unit = parseFloat(getComputedStyle(this.host).fontSize) / 14 || 1;
    const context = this.canvas.getContext("2d")!;
    context.font = `${12 * this.unit}px ${FACE}`;
    const widest = (names: string[]) =>
      Math.max(...names.slice(0, 400).map((t) => context.measureText(t.slice(0, 16)).width), 20);
    const longest = Math.min(132 * this.unit, 0.3 * (this.width || 600));
    this.left = Math.min(longest, widest(this.rows) + 30 * this.unit);
    this.above = Math.min(112 * this.unit, widest(this.cols) * 0.72 + 40 * this.unit);
  }

  private resize(): void {
    const box = this.host.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(80, box.width);
    this.height = Math.max(80, box.height);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    if (this.rows.length) this.margins();
    if (this.fitted) this.fit(false);
    else this.setView(this.view, false);
  }

  private get plot(): { w: number; h: number } {
    return { w: Math.max(10, this.width - this.left - 26), h: Math.max(10, this.height - this.above - 6) };
  }

  /** Where the map begins: it stands in the middle of its room. */
  private get x0(): number {
    return this.left + Math.max(0, (this.plot.w - this.cols.length * this.view.px) / 2);
  }

  private get y0(): number {
    return this.above + Math.max(0, (this.plot.h - this.rows.length * this.py) / 2);
  }

  /** Height of a cell over its width: 1, but a long strip of few rows or columns is spread to be seen. */
  private get stretch(): number {
    const [rows, cols] = [Math.max(1, this.rows.length), Math.max(1, this.cols.length)];
    if (Math.max(rows, cols) < 2 * Math.min(rows, cols)) return 1;
    const filling = this.plot.h / rows / (this.plot.w / cols);
    return Math.min(4, Math.max(0.25, rows < cols ? Math.max(1, filling) : Math.min(1, filling)));
  }

  /** Pixels of a cell from its top to its bottom. */
  private get py(): number {
    return this.view.px * this.stretch;
  }

  private get mostPx(): number {
    return Math.max(MOST_PX, Math.min(this.plot.w, this.plot.h) / 8);
  }

  private get fitPx(): number {
    return Math.min(
      this.mostPx,
      this.plot.w / Math.max(1, this.cols.length),
      this.plot.h / Math.max(1, this.rows.length) / this.stretch,
    );
  }

  fit(tell = true): void {
    this.fitted = true;
    this.view = { x: 0, y: 0, px: this.fitPx };
    this.settled(tell);
  }

  setView(view: Viewport, tell = true): void {
    const px = Math.min(this.mostPx, Math.max(this.fitPx, view.px));
    this.fitted = px <= this.fitPx * 1.0001;
    const room = (cells: number, length: number) => Math.max(0, length - cells);
    this.view = {
      px,
      x: Math.min(room(this.plot.w / px, this.cols.length), Math.max(0, view.x)),
      y: Math.min(room(this.plot.h / px / this.stretch, this.rows.length), Math.max(0, view.y)),
    };
    this.settled(tell);
  }

  private settled(tell: boolean): void {
    // All of it in view: a finger that moves over the map scrolls the page.
    this.canvas.style.touchAction = this.fitted ? "pan-x pan-y" : "none";
    if (tell) this.events.moved(this.fitted ? null : this.view);
    this.invalidate();
  }

  /** Closer or farther, at a place of the canvas; by itself at the chosen cell, or at the strongest in view. */
  zoom(factor: number, at: { x: number; y: number } = this.place(this.selected ?? this.strongest())): void {
    const x = at.x - this.x0;
    const y = at.y - this.y0;
    const px = Math.min(this.mostPx, Math.max(this.fitPx, this.view.px * factor));
    this.setView({
      px,
      x: this.view.x + x / this.view.px - x / px,
      y: this.view.y + (y / this.view.px - y / px) / this.stretch,
    });
  }

  private strongest(): Cell {
    const { r0, r1, c0, c1 } = this.rect;
    const tile = this.pyramid?.overview;
    let best = { row: (r0 + r1) / 2, col: (c0 + c1) / 2 };
    if (!tile) return best;
    const [high, wide] = [tile.r1 / tile.numbers.nRow, tile.c1 / tile.numbers.nCol];
    let top = -1;
    tile.numbers.values.forEach((value, i) => {
      const row = Math.floor((Math.floor(i / tile.numbers.nCol) + 0.5) * high);
      const col = Math.floor(((i % tile.numbers.nCol) + 0.5) * wide);
      if (row < r0 || row >= r1 || col < c0 || col >= c1 || !(value > top)) return;
      top = value;
      best = { row, col };
    });
    return best;
  }

  cellAt(x: number, y: number): Cell | null {
    const col = Math.floor(this.view.x + (x - this.x0) / this.view.px);
    const row = Math.floor(this.view.y + (y - this.y0) / this.py);
    const inside =
      x >= this.x0 &&
      y >= this.y0 &&
      row >= 0 &&
      col >= 0 &&
      row < this.rows.length &&
      col < this.cols.length;
    return inside ? { row, col } : null;
  }

  /** Where a cell's middle is on the canvas, in pixels of the page. */
  place(cell: Cell): { x: number; y: number } {
    return {
      x: this.x0 + (cell.col + 0.5 - this.view.x) * this.view.px,
      y: this.y0 + (cell.row + 0.5 - this.view.y) * this.py,
    };
  }

  highlight(cell: Cell | null): void {
    if (cell?.row === this.hovered?.row && cell?.col === this.hovered?.col) return;
    this.hovered = cell;
    this.invalidate();
  }

  private listen(): void {
    const { canvas } = this;
    const at = (event: PointerEvent | WheelEvent) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const held = new Map<number, { x: number; y: number }>();
    let began: { x: number; y: number; view: Viewport } | null = null;
    let moved = false;
    let spread = 0;
    canvas.addEventListener(
      "wheel",
      (event) => {
        const root = canvas.getRootNode() as ShadowRoot;
        if (!(this.catchesWheel || event.ctrlKey || event.metaKey || root.activeElement === canvas)) return;
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), at(event));
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, at(event));
      began = { ...at(event), view: { ...this.view } };
      moved = this.jump(at(event));
      spread = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const here = at(event);
      if (held.has(event.pointerId)) held.set(event.pointerId, here);
      if (held.size === 2) {
        const [a, b] = [...held.values()] as [{ x: number; y: number }, { x: number; y: number }];
        const wide = Math.hypot(a.x - b.x, a.y - b.y);
        if (spread) this.zoom(wide / spread, { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
        spread = wide;
        moved = true;
      } else if (began && held.size === 1 && !this.jump(here)) {
        if (Math.hypot(here.x - began.x, here.y - began.y) > 4) moved = true;
        if (moved)
          this.setView({
            px: this.view.px,
            x: began.view.x - (here.x - began.x) / this.view.px,
            y: began.view.y - (here.y - began.y) / this.py,
          });
      }
      const dragging = held.size > 0 && moved; // then nothing is read: the map only moves
      const cell = dragging ? null : this.cellAt(here.x, here.y);
      this.highlight(cell);
      this.events.hover(cell, { x: event.clientX, y: event.clientY });
    });
    const release = (event: PointerEvent) => {
      held.delete(event.pointerId);
      const cell = began && !moved ? this.cellAt(at(event).x, at(event).y) : null;
      began = null;
      if (cell && event.type === "pointerup") this.events.pick(cell, false);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      this.highlight(null);
      this.events.hover(null, { x: 0, y: 0 });
    });
    canvas.addEventListener("dblclick", (event) => this.zoom(2.2, at(event as unknown as PointerEvent)));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  private key(event: KeyboardEvent): void {
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const step = steps[event.key];
    if (step) {
      const from = this.selected ?? { row: 0, col: 0 };
      const cell = {
        row: Math.min(this.rows.length - 1, Math.max(0, from.row + step[0])),
        col: Math.min(this.cols.length - 1, Math.max(0, from.col + step[1])),
      };
      this.events.pick(cell, true);
    } else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  invalidate(): void {
    if (!this.frame)
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
  }

  /** The cells in view. */
  get inView(): Rect {
    return this.rect;
  }

  private get rect(): Rect {
    const { x, y, px } = this.view;
    return {
      r0: Math.floor(y),
      r1: Math.min(this.rows.length, Math.ceil(y + this.plot.h / this.py)),
      c0: Math.floor(x),
      c1: Math.min(this.cols.length, Math.ceil(x + this.plot.w / px)),
    };
  }

  private draw(): void {
    const { pyramid } = this;
    if (!pyramid || !this.width) return;
    this.frames++;
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const { x, y, px } = this.view;
    const { py, x0, y0 } = this;
    const { w, h } = this.plot;
    const rect = this.rect;
    const level = Math.min(pyramid.top, Math.max(0, Math.floor(Math.log2(1 / (px * ratio)) + 0.01)));
    pyramid.want(level, rect);
    context.save();
    context.beginPath();
    context.rect(x0, y0, Math.min(w, (this.cols.length - x) * px), Math.min(h, (this.rows.length - y) * py));
    context.clip();
    context.imageSmoothingEnabled = false;
    if (pyramid.ready) {
      this.before = null;
      this.drawTiles(context, pyramid, level, rect);
    } else if (this.seed) {
      let top = 1e-9;
      for (const value of this.seed.values) if (value > top) top = value;
      const picture = paint(this.seed, { ...this.colouring, top, diverging: false });
      context.drawImage(picture, x0 - x * px, y0 - y * py, this.cols.length * px, this.rows.length * py);
    } else if (this.before) {
      context.globalAlpha = 0.4;
      this.drawTiles(context, this.before, level, rect);
      context.globalAlpha = 1;
    }
    this.cells(context, rect);
    if (this.limit !== null && this.limit < this.rows.length) {
      context.fillStyle = this.colouring.theme === "light" ? "rgba(255,255,255,.82)" : "rgba(14,16,22,.82)";
      context.fillRect(x0, y0 + (this.limit - y) * py, w, (this.rows.length - this.limit) * py);
    }
    this.marks(context);
    context.restore();
    this.axes(context, rect);
    this.minimap(context);
  }

  private drawTiles(context: CanvasRenderingContext2D, pyramid: Pyramid, level: number, rect: Rect): void {
    const { x, y, px } = this.view;
    for (const tile of pyramid.shown(level, rect)) {
      context.drawImage(
        pyramid.picture(tile, this.colouring),
        this.x0 + (tile.c0 - x) * px,
        this.y0 + (tile.r0 - y) * this.py,
        (tile.c1 - tile.c0) * px,
        (tile.r1 - tile.r0) * this.py,
      );
    }
  }

  /** Where the small picture of the whole stands, while only part of it is in view. */
  private get corner(): { x: number; y: number; w: number; h: number } | null {
    if (this.fitted) return null;
    const side = MINIMAP * Math.min(this.plot.w, this.plot.h);
    const scale = side / Math.max(this.cols.length, this.rows.length);
    const w = Math.max(14, this.cols.length * scale);
    const h = Math.max(14, this.rows.length * scale);
    return { x: this.left + this.plot.w - w - 6, y: this.above + 6, w, h };
  }

  private minimap(context: CanvasRenderingContext2D): void {
    const at = this.corner;
    const tile = this.pyramid?.overview;
    if (!at || !tile) return;
    const dark = this.colouring.theme === "dark";
    context.fillStyle = dark ? "#161922" : "#ffffff";
    context.fillRect(at.x - 3, at.y - 3, at.w + 6, at.h + 6);
    context.imageSmoothingEnabled = true;
    context.drawImage(this.pyramid!.picture(tile, this.colouring), at.x, at.y, at.w, at.h);
    context.strokeStyle = dark ? "#3a4150" : "#c3c8d2";
    context.lineWidth = 1;
    context.strokeRect(at.x - 2.5, at.y - 2.5, at.w + 5, at.h + 5);
    const { r0, r1, c0, c1 } = this.rect;
    const [sx, sy] = [at.w / this.cols.length, at.h / this.rows.length];
    context.strokeStyle = "#e8590c";
    context.lineWidth = 1.5;
    context.strokeRect(
      at.x + c0 * sx,
      at.y + r0 * sy,
      Math.max(3, (c1 - c0) * sx),
      Math.max(3, (r1 - r0) * sy),
    );
  }

  /** Go where the small picture of the whole was touched; false: it was not. */
  private jump(at: { x: number; y: number }): boolean {
    const { corner } = this;
    if (!corner || at.x < corner.x || at.x > corner.x + corner.w) return false;
    if (at.y < corner.y || at.y > corner.y + corner.h) return false;
    const { r0, r1, c0, c1 } = this.rect;
    this.setView({
      px: this.view.px,
      x: ((at.x - corner.x) / corner.w) * this.cols.length - (c1 - c0) / 2,
      y: ((at.y - corner.y) / corner.h) * this.rows.length - (r1 - r0) / 2,
    });
    return true;
  }

  /** Hatching of hidden cells, lines between cells, and numbers where they fit. */
  private cells(context: CanvasRenderingContext2D, rect: Rect): void {
    const { x, y, px } = this.view;
    const { py } = this;
    if (Math.min(px, py) < GRID_FROM) return;
    const light = this.colouring.theme === "light";
    const hatch = light ? "rgba(120,124,135,.33)" : "rgba(160,165,180,.22)";
    context.lineWidth = 1;
    context.font = `${Math.min(13 * this.unit, px / 3.4, py / 1.6)}px ${FACE}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = rect.r0; row < rect.r1; row++) {
      for (let col = rect.c0; col < rect.c1; col++) {
        const value = this.pyramid!.cell(row, col);
        const left = this.x0 + (col - x) * px;
        const top = this.y0 + (row - y) * py;
        if (value === undefined) continue;
        if (Number.isNaN(value)) {
          context.strokeStyle = hatch;
          context.beginPath();
          context.moveTo(left, top + py);
          context.lineTo(left + px, top);
          context.stroke();
        } else if (px >= NUMBERS_FROM && py >= NUMBERS_FROM / 2) {
          context.fillStyle = inkOn(value, this.colouring);
          context.fillText(inCell(value, px > 50 ? 3 : 2), left + px / 2, top + py / 2);
        }
      }
    }
    context.strokeStyle = light ? "rgba(255,255,255,.55)" : "rgba(0,0,0,.35)";
    context.beginPath();
    for (let row = rect.r0; row <= rect.r1; row++) {
      context.moveTo(this.x0, this.y0 + (row - y) * py);
      context.lineTo(this.x0 + (this.cols.length - x) * px, this.y0 + (row - y) * py);
    }
    for (let col = rect.c0; col <= rect.c1; col++) {
      context.moveTo(this.x0 + (col - x) * px, this.y0);
      context.lineTo(this.x0 + (col - x) * px, this.y0 + (this.rows.length - y) * py);
    }
    context.stroke();
  }

  private marks(context: CanvasRenderingContext2D): void {
    const { x, y, px } = this.view;
    const { py } = this;
    const dark = this.colouring.theme === "dark";
    if (this.hovered) {
      context.fillStyle = dark ? "rgba(255,255,255,.10)" : "rgba(213,94,0,.10)";
      context.fillRect(this.x0, this.y0 + (this.hovered.row - y) * py, this.width, Math.max(1, py));
      context.fillRect(this.x0 + (this.hovered.col - x) * px, this.y0, Math.max(1, px), this.height);
    }
    if (this.row !== null && !this.selected) {
      context.strokeStyle = "#e8590c";
      context.lineWidth = 2;
      context.strokeRect(
        this.x0 - x * px + 1,
        this.y0 + (this.row - y) * py,
        this.cols.length * px - 2,
        Math.max(py, 4),
      );
    }
    if (this.selected) {
      const [wide, high] = [Math.max(px, 5), Math.max(py, 5)];
      context.strokeStyle = "#e8590c";
      context.lineWidth = 2;
      context.strokeRect(
        this.x0 + (this.selected.col + 0.5 - x) * px - wide / 2,
        this.y0 + (this.selected.row + 0.5 - y) * py - high / 2,
        wide,
        high,
      );
    }
  }

  private axes(context: CanvasRenderingContext2D, rect: Rect): void {
    const { x, y, px } = this.view;
    const { py } = this;
    const dark = this.colouring.theme === "dark";
    const [ink, faint, strong] = dark ? ["#c6cad4", "#8b91a0", "#ff9a5c"] : ["#3b404c", "#7a808d", "#c2410c"];
    const letters = (size: number) => Math.min(12 * this.unit, Math.max(8.5 * this.unit, 0.86 * size));
    const size = { row: letters(py), col: letters(px) };
    // Every token has its label while letters just fit; where some are left out, the others have air.
    const step = (letter: number, cell: number, air: number) =>
      1.02 * letter <= cell ? 1 : Math.ceil((air * letter) / cell);
    const every = { row: step(size.row, py, 1.2), col: step(size.col, px, 1.6) };
    const marked = (index: number, which: "row" | "col") =>
      index === this.hovered?.[which] ||
      index === this.selected?.[which] ||
      (which === "row" && index === this.row);
    const shown = (first: number, last: number, which: "row" | "col") => {
      const step = every[which];
      const list: number[] = [];
      for (let i = Math.ceil(first / step) * step; i < last; i += step) list.push(i);
      for (const extra of [this.hovered?.[which], this.selected?.[which]]) {
        if (extra === undefined || extra < first || extra >= last) continue;
        // The marked label takes the place of those it would cover.
        const clear = list.filter((i) => Math.abs(i - extra) * (which === "row" ? py : px) >= 11.5);
        list.splice(0, list.length, ...clear, extra);
      }
      return list;
    };
    // Where not every token has its label, those that do say which they are.
    const name = (index: number, which: "row" | "col") =>
      shorter((which === "row" ? this.rows : this.cols)[index]!) + (every[which] > 1 ? ` ${index}` : "");
    const { x0, y0 } = this;
    const bottom = Math.min(this.plot.h, (this.rows.length - y) * py);
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.font = `${size.row}px ${FACE}`;
    for (const row of shown(rect.r0, rect.r1, "row")) {
      const at = y0 + (row + 0.5 - y) * py;
      if (at < y0 - 2 || at > this.height) continue;
      context.fillStyle = marked(row, "row") ? strong : ink;
      context.fillText(name(row, "row"), x0 - 7, at, this.left - 24);
    }
    context.textAlign = "left";
    context.font = `${size.col}px ${FACE}`;
    for (const col of shown(rect.c0, rect.c1, "col")) {
      const at = x0 + (col + 0.5 - x) * px;
      if (at < x0 - 2 || at > this.left + this.plot.w) continue;
      context.save();
      context.translate(at + 1, y0 - 7);
      context.rotate(px * every.col > 30 ? -Math.PI / 4 : -Math.PI / 3);
      context.fillStyle = marked(col, "col") ? strong : ink;
      context.fillText(name(col, "col"), 0, 0);
      context.restore();
    }
    context.font = `600 ${11 * this.unit}px ${FACE}`;
    context.fillStyle = faint;
    context.fillText("looked at (key)", x0, y0 - this.above + 9 * this.unit);
    context.save();
    context.translate(x0 - this.left + 9 * this.unit, y0 + bottom);
    context.rotate(-Math.PI / 2);
    context.fillText("looking (query)", Math.max(0, bottom - 96 * this.unit), 0);
    context.restore();
  }

  /** What one pixel stands for, in words. */
  get grain(): string {
    const level = this.pyramid
      ? Math.min(
          this.pyramid.top,
          Math.max(0, Math.floor(Math.log2(1 / (this.view.px * (window.devicePixelRatio || 1))) + 0.01)),
        )
      : 0;
    return level ? `a dot is the largest of ${1 << level} × ${1 << level} cells` : "a square is one weight";
  }
}

const FACE = "ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
/** A weight without the 0 before its point; what rounds to nothing is said to be less, 0 is nothing at all. */
export function inCell(value: number, digits: number): string {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const sign = value < 0 ? "−" : "";
  if (size < 0.5 * 10 ** -digits) return `${sign}<.${"0".repeat(digits - 1)}1`;
  return sign + size.toFixed(digits).replace(/^0\./, ".");
}
const shorter = (text: string) => (text.length > 16 ? `${text.slice(0, 15)}…` : text);
export const hiddenCss = (theme: "light" | "dark") => `rgb(${HIDDEN[theme].join(",")})`;
