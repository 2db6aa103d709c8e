// What stands on the page as a picture of its own: words, boxes and lines stay vectors.

import type { Theme } from "./colour";

const MARGIN = 16;
const LEFT_OUT = ".tool, details, input[type=range]"; // what is pressed is no part of a picture

export const escaped = (text: string): string => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** A picture that stands by itself. `says` is kept in it; `millimetres` is how large it is printed. */
export function picture(
  width: number,
  height: number,
  theme: Theme,
  inside: string,
  says = "",
  millimetres: { width: number; height: number } | null = null,
): string {
  const [paper, ink] = theme === "dark" ? ["#161922", "#e6e8ee"] : ["#ffffff", "#1d2129"];
  const [w, h] = millimetres
    ? [`${+millimetres.width.toFixed(2)}mm`, `${+millimetres.height.toFixed(2)}mm`]
    : [width, height];
  const about = says ? `<desc>${escaped(says)}</desc>` : "";
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${+width.toFixed(2)} ${+height.toFixed(2)}" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12" fill="${ink}">${about}<rect width="100%" height="100%" fill="${paper}"/>${inside}</svg>`;
}

/** What is drawn inside `root`, all of it, however little is scrolled into view. `links` draws a canvas anew. */
export function snapshot(
  root: HTMLElement,
  theme: Theme,
  title: string,
  links: (canvas: HTMLCanvasElement) => string,
  says = "",
  wide: number | null = null, // millimetres
): string {
  const measure = document.createElement("canvas").getContext("2d")!;
  const [left, top] = [root.getBoundingClientRect().left, root.getBoundingClientRect().top];
  const ends = { x0: Infinity, y0: Infinity, x1: -Infinity, y1: -Infinity };
  const place = (box: DOMRect) => {
    ends.x0 = Math.min(ends.x0, box.left - left);
    ends.y0 = Math.min(ends.y0, box.top - top);
    ends.x1 = Math.max(ends.x1, box.right - left);
    ends.y1 = Math.max(ends.y1, box.bottom - top);
    return `x="${round(box.left - left)}" y="${round(box.top - top)}" width="${round(box.width)}" height="${round(box.height)}"`;
  };
  const letters = (text: string, box: DOMRect, style: CSSStyleDeclaration): string => {
    if (!box.width) return "";
    place(box);
    measure.font = style.font;
    const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = measure.measureText(text);
    const upright = style.writingMode === "horizontal-tb";
    const rise = (up / (up + down)) * (upright ? box.height : box.width); // the line that letters stand on
    const at = upright
      ? `x="${round(box.left - left)}" y="${round(box.top - top + rise)}"`
      : `transform="translate(${round(box.left - left + rise)},${round(box.bottom - top)}) rotate(-90)"`;
    const kind = `${style.fontStyle === "italic" ? ' font-style="italic"' : ""}${Number(style.fontWeight) > 400 ? ` font-weight="${style.fontWeight}"` : ""}`;
    return `<text ${at} font-size="${style.fontSize}"${kind} fill="${style.color}">${escaped(text)}</text>`;
  };
  const words = (node: Text, style: CSSStyleDeclaration): string =>
    [...node.data.matchAll(/\S+/g)]
      .map(({ index, 0: word }) => {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        return letters(word, range.getBoundingClientRect(), style);
      })
      .join("");
  const shape = (element: SVGGraphicsElement, style: CSSStyleDeclaration): string => {
    if (element.localName === "text") {
      const [x, y] = ["x", "y"].map((name) => Number(element.getAttribute(name)));
      const { e, f } = element.getScreenCTM()!;
      place(element.getBoundingClientRect());
      return `<text x="${round(x! + e - left)}" y="${round(y! + f - top)}" text-anchor="middle" font-size="${style.fontSize}" font-weight="${style.fontWeight}" fill="${style.fill}">${escaped(element.textContent ?? "")}</text>`;
    }
    const { a, b, c, d, e, f } = element.getScreenCTM()!;
    place(element.getBoundingClientRect());
    const line =
      style.stroke === "none"
        ? ""
        : ` stroke="${style.stroke}" stroke-width="${style.strokeWidth}" stroke-linecap="round"`;
    return `<path d="${element.getAttribute("d")}" transform="matrix(${[a, b, c, d, e - left, f - top].map(round).join(" ")})" fill="${style.fill}"${line} opacity="${style.opacity}"/>`;
  };
  const draw = (node: Node): string => {
    if (node instanceof Text) return words(node, getComputedStyle(node.parentElement!));
    if (!(node instanceof HTMLElement || node instanceof SVGElement) || node.matches(LEFT_OUT)) return "";
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden") return "";
    if (node instanceof SVGElement)
      return node instanceof SVGSVGElement
        ? [...node.children].map(draw).join("")
        : shape(node as SVGGraphicsElement, style);
    const box = node.getBoundingClientRect();
    let out = "";
    const filled = !/^rgba\(.*, 0\)$/.test(style.backgroundColor);
    const edge =
      parseFloat(style.borderTopWidth) && parseFloat(style.borderLeftWidth)
        ? style.borderTopColor
        : style.outlineStyle === "solid"
          ? style.outlineColor
          : "";
    if (node !== root && box.width && (filled || edge))
      out += `<rect ${place(box)} rx="${Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2)}" fill="${filled ? style.backgroundColor : "none"}"${edge ? ` stroke="${edge}"` : ""}/>`;
    if (node instanceof HTMLCanvasElement) {
      const vectors = links(node);
      const at = place(box);
      out += vectors
        ? `<g transform="translate(${round(box.left - left)},${round(box.top - top)})">${vectors}</g>`
        : `<image ${at} href="${node.toDataURL()}"/>`;
    } else if (node instanceof HTMLImageElement)
      out += `<image ${place(box)} preserveAspectRatio="none" href="${node.src}"/>`;
    else if (node instanceof HTMLInputElement) {
      const inner = new DOMRect(
        box.left + parseFloat(style.paddingLeft),
        box.top + 2,
        box.width,
        box.height - 4,
      );
      out += letters(node.value, inner, style);
    }
    let inside = [...node.childNodes].map(draw).join("");
    // What an element cuts off is cut off here too; what only has to be scrolled to is not.
    if (style.overflowX === "hidden" && inside)
      inside = `<svg ${place(box)} viewBox="${[box.left - left, box.top - top, box.width, box.height].map(round).join(" ")}">${inside}</svg>`;
    return style.opacity === "1" ? out + inside : `<g opacity="${style.opacity}">${out}${inside}</g>`;
  };
  const inside = draw(root);
  const head = title ? 26 : 0;
  const [width, height] = [ends.x1 - ends.x0 + 2 * MARGIN, ends.y1 - ends.y0 + 2 * MARGIN + head];
  const said = title && `<text x="${MARGIN}" y="22" font-weight="600">${escaped(title)}</text>`;
  const moved = `translate(${round(MARGIN - ends.x0)},${round(MARGIN + head - ends.y0)})`;
  const [w, h] = [Math.ceil(width), Math.ceil(height)];
  const printed = wide === null ? null : { width: wide, height: (wide * h) / w };
  return picture(w, h, theme, `${said}<g transform="${moved}">${inside}</g>`, says, printed);
}

const round = (value: number): number => +value.toFixed(2);
