// A pyramid of tiles: level n shows squares of 2^n x 2^n cells. Only what is in view is asked for.

import { type Colouring, paint } from "./colour";
import { aborted, type Region, type Tile, type TileSource } from "./types";

export const TILE = 256;
const MOST = 64; // tiles kept of a head: 64 x 256 KiB

export interface PlacedTile {
  level: number;
  r0: number;
  r1: number;
  c0: number;
  c1: number;
  numbers: Tile;
  canvas: HTMLCanvasElement | null;
  painted: string;
}

export interface Rect {
  r0: number;
  r1: number;
  c0: number;
  c1: number;
}

export class Pyramid {
  private readonly tiles = new Map<string, PlacedTile>();
  private readonly pending = new Map<string, AbortController>();
  readonly top: number; // the level at which one tile is all
  span = 0; // the weight that gets the last colour; 0 until something is seen
  clipped = false; // whether some weights are above it

  constructor(
    readonly source: TileSource,
    readonly layer: number,
    readonly head: number,
    readonly valued: boolean,
    private readonly onTile: () => void,
    private readonly onError: (error: unknown) => void,
  ) {
    const { queries, keys } = this.meta;
    this.top = Math.max(0, Math.ceil(Math.log2(Math.max(queries, keys) / TILE)));
    void this.load(`${this.top}/0/0`); // now, not when there is a frame to draw
  }

  get meta(): { queries: number; keys: number } {
    return this.source.meta.layers[this.layer]!;
  }

  /** The tile that is all of the head, once it is here. */
  get overview(): PlacedTile | undefined {
    return this.tiles.get(`${this.top}/0/0`);
  }

  get ready(): boolean {
    return this.tiles.size > 0;
  }

  get waiting(): number {
    return this.pending.size;
  }

  /** Ask for what is in view at `level`, and for nothing else any more. */
  want(level: number, view: Rect): void {
    const wanted = new Set<string>();
    if (!this.overview) wanted.add(`${this.top}/0/0`);
    const size = TILE << level;
    // The overview first: until it is there nothing finer is asked for, so it comes soonest.
    if (!wanted.size) {
      for (let ty = Math.floor(view.r0 / size); ty * size < view.r1; ty++) {
        for (let tx = Math.floor(view.c0 / size); tx * size < view.c1; tx++)
          wanted.add(`${level}/${ty}/${tx}`);
      }
    }
    for (const [key, controller] of this.pending) {
      if (wanted.has(key)) continue;
      controller.abort();
      this.pending.delete(key);
    }
    for (const key of wanted) if (!this.tiles.has(key) && !this.pending.has(key)) void this.load(key);
  }

  private async load(key: string): Promise<void> {
    const [level, ty, tx] = key.split("/").map(Number) as [number, number, number];
    const size = TILE << level;
    const { queries, keys } = this.meta;
    const r0 = ty * size;
    const c0 = tx * size;
    const r1 = Math.min(queries, r0 + size);
    const c1 = Math.min(keys, c0 + size);
    if (r0 >= r1 || c0 >= c1) return;
    const controller = new AbortController();
    this.pending.set(key, controller);
    const region: Region = {
      layer: this.layer,
      head: this.head,
      r0,
      r1,
      c0,
      c1,
      nRow: Math.ceil((r1 - r0) / (1 << level)),
      nCol: Math.ceil((c1 - c0) / (1 << level)),
      valued: this.valued,
    };
    try {
      const numbers = await this.source.tile(region, controller.signal);
      if (level === this.top) this.measure(numbers);
      this.tiles.set(key, { level, r0, r1, c0, c1, numbers, canvas: null, painted: "" });
      if (this.tiles.size > MOST) this.forget(key);
    } catch (error) {
      if (!aborted(error)) this.onError(error);
    } finally {
      if (this.pending.get(key) === controller) this.pending.delete(key);
      if (!controller.signal.aborted) this.onTile();
    }
  }

  /** In a long text a few weights near 1 would leave all others dark: the 1 in 200 largest dots share the
   * last colour there, and the legend says so. */
  private measure(tile: Tile): void {
    const sizes = tile.values
      .map(Math.abs)
      .filter((v) => !Number.isNaN(v))
      .sort();
    const largest = sizes[sizes.length - 1] ?? 0;
    this.span = this.top === 0 ? largest : sizes[Math.floor(0.995 * (sizes.length - 1))] || largest;
    this.clipped = this.span < largest;
  }

  private forget(newest: string): void {
    for (const [key, tile] of this.tiles) {
      if (tile.level === this.top || key === newest) continue;
      this.tiles.delete(key);
      return;
    }
  }

  /** Tiles that touch the view: those of `level` where they are all here, else coarser ones under them. */
  shown(level: number, view: Rect): PlacedTile[] {
    const touching = [...this.tiles.values()].filter(
      (t) => t.level >= level && t.r0 < view.r1 && t.r1 > view.r0 && t.c0 < view.c1 && t.c1 > view.c0,
    );
    const size = TILE << level;
    const across = (first: number, last: number) => Math.ceil(last / size) - Math.floor(first / size);
    const fine = touching.filter((t) => t.level === level);
    if (fine.length === across(view.r0, view.r1) * across(view.c0, view.c1)) return fine;
    return touching.sort((a, b) => b.level - a.level);
  }

  picture(tile: PlacedTile, how: Colouring): HTMLCanvasElement {
    const painted = `${how.scale}${how.theme}${how.top}${how.diverging}`;
    if (!tile.canvas || tile.painted !== painted) {
      tile.canvas = paint(tile.numbers, how);
      tile.painted = painted;
    }
    return tile.canvas;
  }

  /** The exact weight of a cell, where a tile of single cells is there. */
  cell(row: number, col: number): number | undefined {
    const tile = this.tiles.get(`0/${Math.floor(row / TILE)}/${Math.floor(col / TILE)}`);
    return tile?.numbers.values[(row - tile.r0) * tile.numbers.nCol + col - tile.c0];
  }

  stop(): void {
    for (const controller of this.pending.values()) controller.abort();
    this.pending.clear();
  }
}
