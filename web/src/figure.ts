// The map as a figure for a paper: exactly what the page shows, as vectors, with its colour bar and axes.

import { type Colouring, css, inkOn, paint, SCALE_NAMES, valueAt } from "./colour";
import { number } from "./dom";
import { hiddenCss, inCell } from "./mapview";
import { escaped, picture } from "./snapshot";
import type { Rect } from "./tiles";
import type { Tile, TileSource } from "./types";

/** One panel of the stage, as it is shown. */
export interface FigurePanel {
  title: string;
  source: TileSource;
  layer: number;
  head: number;
  valued: boolean;
  rect: Rect; // the cells in view
  colouring: Colouring;
  clipped: boolean; // whether some weights are above the last colour
  rows: string[]; // names of all rows
  cols: string[];
}

/** How large a figure is: as on the page, or as wide as a column of a paper, with letters of a size in points. */
export interface FigureSize {
  millimetres: number | null;
  points: number;
}

const MOST_CELLS = 14_000; // drawn one by one; more are one image, each dot the largest weight of its cells
const MOST_DOTS = 1200;
const PIXEL = 25.4 / 96; // millimetres

/** Numbers of the cells in view: one for each, or of groups where they are too many to be told apart. */
export async function cellsOf(panel: FigurePanel): Promise<Tile> {
  const { source, layer, head, valued, rect } = panel;
  const [rows, cols] = [rect.r1 - rect.r0, rect.c1 - rect.c0];
  return source.tile({
    layer,
    head,
    ...rect,
    nRow: Math.min(rows, MOST_DOTS),
    nCol: Math.min(cols, MOST_DOTS),
    valued,
  });
}

const short = (text: string): string => (text.length > 14 ? `${text.slice(0, 13)}…` : text);

/** The figure; `says` is the command that makes it again, kept in the file. */
export function mapFigure(panels: FigurePanel[], tiles: Tile[], size: FigureSize, says: string): string {
  const { theme } = panels[0]!.colouring;
  const letter = size.millimetres === null ? 12 : size.points / 0.75;
  const total = size.millimetres === null ? null : size.millimetres / PIXEL;
  const widest = (names: string[]) => Math.max(...names.map((name) => Math.min(14, name.length)), 3);
  const gap = 1.6 * letter;
  const rowNames = (p: FigurePanel) => p.rows.slice(p.rect.r0, p.rect.r1).map(short);
  const colNames = (p: FigurePanel) => p.cols.slice(p.rect.c0, p.rect.c1).map(short);
  const left = Math.max(...panels.map((p) => widest(rowNames(p)))) * 0.58 * letter + 2.2 * letter;
  const above = Math.max(...panels.map((p) => widest(colNames(p)))) * 0.45 * letter + 4.4 * letter;
  const room =
    total === null
      ? null
      : (total - panels.length * left - (panels.length - 1) * gap - letter) / panels.length;
  const columns = Math.max(...panels.map((p) => p.rect.c1 - p.rect.c0));
  const cell =
    room === null ? Math.max(2, Math.min(26, 760 / columns)) : Math.max(0.2, Math.min(26, room / columns));
  const out: string[] = [];
  let x0 = left;
  let [right, bottom] = [0, 0];
  panels.forEach((panel, i) => {
    const tile = tiles[i]!;
    const [nRow, nCol] = [panel.rect.r1 - panel.rect.r0, panel.rect.c1 - panel.rect.c0];
    const [wide, high] = [nCol * cell, nRow * cell];
    const each = tile.nRow === nRow && tile.nCol === nCol && nRow * nCol <= MOST_CELLS;
    if (each)
      for (let r = 0; r < nRow; r++)
        for (let c = 0; c < nCol; c++) {
          const value = tile.values[r * nCol + c]!;
          const fill = Number.isNaN(value) ? hiddenCss(theme) : css(value, panel.colouring);
          out.push(
            `<rect x="${f(x0 + c * cell)}" y="${f(above + r * cell)}" width="${f(cell)}" height="${f(cell)}" fill="${fill}"/>`,
          );
          if (cell >= 1.75 * letter && !Number.isNaN(value))
            out.push(
              `<text x="${f(x0 + (c + 0.5) * cell)}" y="${f(above + (r + 0.5) * cell + 0.26 * letter)}" text-anchor="middle" font-size="${f(0.72 * letter)}" fill="${inkOn(value, panel.colouring)}">${escaped(inCell(value, 2))}</text>`,
            );
        }
    else
      out.push(
        `<image x="${f(x0)}" y="${f(above)}" width="${f(wide)}" height="${f(high)}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${paint(tile, panel.colouring).toDataURL()}"/>`,
      );
    // As many names as fit; where some are left out, the others say which they are.
    const every = Math.max(1, Math.ceil((1.05 * letter) / cell));
    const named = (name: string, index: number) => escaped(every > 1 ? `${name} ${index}` : name);
    rowNames(panel).forEach((name, r) => {
      if ((panel.rect.r0 + r) % every) return;
      out.push(
        `<text x="${f(x0 - 0.4 * letter)}" y="${f(above + (r + 0.5) * cell + 0.33 * letter)}" text-anchor="end">${named(name, panel.rect.r0 + r)}</text>`,
      );
    });
    colNames(panel).forEach((name, c) => {
      if ((panel.rect.c0 + c) % every) return;
      out.push(
        `<text transform="translate(${f(x0 + (c + 0.6) * cell)},${f(above - 0.5 * letter)}) rotate(-50)">${named(name, panel.rect.c0 + c)}</text>`,
      );
    });
    out.push(`<text x="${f(x0)}" y="${f(1.1 * letter)}" font-weight="600">${escaped(panel.title)}</text>`);
    out.push(
      `<text x="${f(x0)}" y="${f(2.5 * letter)}" font-size="${f(0.85 * letter)}">looked at (key)</text>`,
    );
    out.push(
      `<text transform="translate(${f(x0 - left + letter)},${f(above + Math.min(high, 9 * letter))}) rotate(-90)" font-size="${f(0.85 * letter)}">looking (query)</text>`,
    );
    const dots = each
      ? ""
      : `, each dot the largest of ${Math.ceil(nRow / tile.nRow)} × ${Math.ceil(nCol / tile.nCol)}`;
    out.push(
      ...bar(
        panel,
        x0,
        above + high + 1.1 * letter,
        Math.max(9 * letter, Math.min(wide, 16 * letter)),
        letter,
        dots,
      ),
    );
    right = Math.max(right, x0 + Math.max(wide, 18 * letter));
    bottom = Math.max(bottom, above + high + 4.2 * letter);
    x0 += wide + gap + left;
  });
  const [width, height] = [total ?? Math.ceil(right + letter), Math.ceil(bottom)];
  const scaled =
    size.millimetres === null
      ? null
      : { width: size.millimetres, height: height * PIXEL * (size.millimetres / (width * PIXEL)) };
  return picture(width, height, theme, `<g font-size="${f(letter)}">${out.join("")}</g>`, says, scaled);
}

/** The colours and what they stand for. */
function bar(panel: FigurePanel, x: number, y: number, wide: number, letter: number, dots: string): string[] {
  const { colouring: how } = panel;
  const steps = 64;
  const out = Array.from({ length: steps }, (_, i) => {
    const part = i / (steps - 1);
    const value = how.diverging
      ? Math.sign(part - 0.5) * valueAt(Math.abs(2 * part - 1), how)
      : valueAt(part, how);
    return `<rect x="${f(x + (i * wide) / steps)}" y="${f(y)}" width="${f(wide / steps + 0.3)}" height="${f(0.8 * letter)}" fill="${css(value, how)}"/>`;
  });
  const what = how.diverging ? "difference of weights" : panel.valued ? "weight × |v|" : "weight";
  const ends = [
    how.diverging ? number(-how.top) : "0",
    `${number(how.top)}${panel.clipped ? " and above" : ""}`,
  ];
  const text = (at: number, anchor: string, said: string, line: number) =>
    `<text x="${f(at)}" y="${f(y + line * letter)}" text-anchor="${anchor}" font-size="${f(0.85 * letter)}">${escaped(said)}</text>`;
  return [
    ...out,
    text(x, "start", ends[0]!, 1.8),
    text(x + wide, "end", ends[1]!, 1.8),
    text(x, "start", `${what}, ${SCALE_NAMES[how.scale]} scale${dots}`, 2.8),
  ];
}

const f = (value: number): number => +value.toFixed(2);

/** A PNG with a text in it: the chunk stands before the pixels. */
export function withText(png: Uint8Array, says: string): Uint8Array {
  const text = new TextEncoder().encode(says);
  const key = new TextEncoder().encode("Description\0\0\0\0\0");
  const body = new Uint8Array(4 + key.length + text.length);
  body.set(new TextEncoder().encode("iTXt"));
  body.set(key, 4);
  body.set(text, 4 + key.length);
  const out = new Uint8Array(png.length + body.length + 8);
  const at = 33; // after the signature and the header
  out.set(png.subarray(0, at));
  const view = new DataView(out.buffer);
  view.setUint32(at, body.length - 4);
  out.set(body, at + 4);
  view.setUint32(at + 4 + body.length, crc(body));
  out.set(png.subarray(at), at + 8 + body.length);
  return out;
}

/** The checksum of a chunk (ISO 3309). */
export function crc(bytes: Uint8Array): number {
  let value = 0xffffffff;
  for (const byte of bytes) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit++) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  }
  return (value ^ 0xffffffff) >>> 0;
}
