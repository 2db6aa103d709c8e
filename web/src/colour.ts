// Numbers to colours. Lightness alone carries the order, so that every kind of colour blindness can read it.

import { DIFFERENCE_COLORS, WEIGHT_COLORS } from "./registry";
import type { Tile } from "./types";

export type ScaleName = "linear" | "sqrt" | "log";
export type Theme = "light" | "dark";
type Rgb = [number, number, number];

const rgbOf = (hex: string): Rgb => {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};

const DARK: Rgb[] = [
  [16, 18, 26],
  [38, 34, 84],
  [84, 44, 132],
  [150, 54, 128],
  [214, 82, 96],
  [246, 150, 82],
  [253, 236, 170],
];
export const HIDDEN: Record<Theme, Rgb> = { light: [226, 227, 231], dark: [44, 47, 56] };
export const SCALE_NAMES: Record<ScaleName, string> = { linear: "linear", sqrt: "square root", log: "log" };
/** Okabe and Ito's colours, told apart with every kind of colour blindness. */
export const CATEGORY = [
  "#0072b2",
  "#d55e00",
  "#009e73",
  "#cc79a7",
  "#e69f00",
  "#56b4e9",
  "#8a6fd1",
  "#7a7f87",
];
const FLOOR = 1e-4; // what the log scale begins with

function table(anchors: Rgb[]): Uint8ClampedArray {
  const out = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (anchors.length - 1);
    const low = Math.min(anchors.length - 2, Math.floor(place));
    for (let c = 0; c < 3; c++)
      out[3 * i + c] = anchors[low]![c]! + (place - low) * (anchors[low + 1]![c]! - anchors[low]![c]!);
  }
  return out;
}

const SEQUENTIAL: Record<Theme, Uint8ClampedArray> = {
  light: table(WEIGHT_COLORS.map(rgbOf)),
  dark: table(DARK),
};
const DIVERGING: Record<Theme, Uint8ClampedArray> = {
  light: table(DIFFERENCE_COLORS.map(rgbOf)),
  dark: table([
    [168, 208, 230],
    [62, 140, 196],
    [16, 70, 120],
    [20, 21, 26],
    [130, 66, 12],
    [222, 124, 40],
    [250, 202, 150],
  ]),
};

export interface Colouring {
  scale: ScaleName;
  theme: Theme;
  top: number; // the number that has the last colour
  diverging: boolean;
}

/** Where a number stands between the first colour (0) and the last (1). */
export function share(value: number, { scale, top }: { scale: ScaleName; top: number }): number {
  const x = Math.min(1, Math.max(0, value / top));
  if (scale === "linear") return x;
  if (scale === "sqrt") return Math.sqrt(x);
  return x <= FLOOR ? 0 : 1 - Math.log(x) / Math.log(FLOOR);
}

/** The number at a share of the scale: the inverse, for legends. */
export function valueAt(part: number, { scale, top }: { scale: ScaleName; top: number }): number {
  if (scale === "linear") return part * top;
  if (scale === "sqrt") return part * part * top;
  return part === 0 ? 0 : top * FLOOR ** (1 - part);
}

function place(value: number, how: Colouring): number {
  if (!how.diverging) return Math.round(255 * share(value, how));
  const half = share(Math.abs(value), how) / 2;
  return Math.round(255 * (value < 0 ? 0.5 - half : 0.5 + half));
}

export function rgb(value: number, how: Colouring): Rgb {
  if (Number.isNaN(value)) return HIDDEN[how.theme];
  const at = 3 * place(value, how);
  const colours = (how.diverging ? DIVERGING : SEQUENTIAL)[how.theme];
  return [colours[at]!, colours[at + 1]!, colours[at + 2]!];
}

export function css(value: number, how: Colouring): string {
  return `rgb(${rgb(value, how).join(",")})`;
}

/** Black or white, whichever is read more easily upon a colour. */
export function inkOn(value: number, how: Colouring): string {
  const [r, g, b] = rgb(value, how);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14161c" : "#ffffff";
}

/** A tile as a picture of one pixel for each number. */
export function paint(tile: Tile, how: Colouring): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = tile.nCol;
  canvas.height = tile.nRow;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(tile.nCol, tile.nRow);
  const colours = (how.diverging ? DIVERGING : SEQUENTIAL)[how.theme];
  const hidden = HIDDEN[how.theme];
  for (let i = 0; i < tile.values.length; i++) {
    const value = tile.values[i]!;
    if (Number.isNaN(value)) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = hidden[c]!;
    } else {
      const at = 3 * place(value, how);
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours[at + c]!;
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
