// An SVG as a PDF: rectangles, paths, text and images, with the command that made it in the file.

type Matrix = [number, number, number, number, number, number];

const IDENTITY: Matrix = [1, 0, 0, 1, 0, 0];
const POINT = 0.75; // of a CSS pixel

/** First a, then b. */
export const times = (b: Matrix, a: Matrix): Matrix => [
  b[0] * a[0] + b[2] * a[1],
  b[1] * a[0] + b[3] * a[1],
  b[0] * a[2] + b[2] * a[3],
  b[1] * a[2] + b[3] * a[3],
  b[0] * a[4] + b[2] * a[5] + b[4],
  b[1] * a[4] + b[3] * a[5] + b[5],
];

/** What an SVG's transform attribute says: matrix, translate, rotate and scale. */
export function transformOf(text: string | null): Matrix {
  let found = IDENTITY;
  for (const [, name, inside] of (text ?? "").matchAll(/(\w+)\(([^)]*)\)/g)) {
    const v = inside!.split(/[\s,]+/).map(Number);
    const turn = ((v[0] ?? 0) * Math.PI) / 180;
    const next: Record<string, Matrix> = {
      matrix: v as Matrix,
      translate: [1, 0, 0, 1, v[0] ?? 0, v[1] ?? 0],
      scale: [v[0] ?? 1, 0, 0, v[1] ?? v[0] ?? 1, 0, 0],
      rotate: [Math.cos(turn), Math.sin(turn), -Math.sin(turn), Math.cos(turn), 0, 0],
    };
    found = times(found, next[name!] ?? IDENTITY);
  }
  return found;
}

/** A CSS colour as three numbers and its opacity; null: nothing is painted. */
export function colourOf(text: string | null): [number, number, number, number] | null {
  if (!text || text === "none" || text === "transparent") return null;
  const hex = /^#([0-9a-f]{6})$/i.exec(text);
  if (hex) {
    const v = parseInt(hex[1]!, 16);
    return [(v >> 16) / 255, ((v >> 8) & 255) / 255, (v & 255) / 255, 1];
  }
  const v = text.match(/[\d.]+/g)?.map(Number);
  if (!v || v.length < 3) return [0, 0, 0, 1];
  const most = text.startsWith("color(") ? 1 : 255;
  return [v[0]! / most, v[1]! / most, v[2]! / most, v[3] ?? 1];
}

const round = (value: number): string => String(+value.toFixed(3));

/** A path's commands as PDF's: moves, lines and curves. */
export function pathOf(d: string): string {
  const out: string[] = [];
  let [x, y, x0, y0] = [0, 0, 0, 0];
  for (const [, command, inside] of d.matchAll(/([MmLlHhVvCcZz])([^MmLlHhVvCcZz]*)/g)) {
    const v = (inside!.match(/-?(?:\d*\.\d+|\d+\.?)(?:e-?\d+)?/g) ?? []).map(Number);
    const own = command === command!.toLowerCase();
    const kind = command!.toUpperCase();
    if (kind === "Z") {
      out.push("h");
      [x, y] = [x0, y0];
    } else if (kind === "H" || kind === "V")
      for (const value of v) {
        [x, y] = kind === "H" ? [value + (own ? x : 0), y] : [x, value + (own ? y : 0)];
        out.push(`${round(x)} ${round(y)} l`);
      }
    else if (kind === "C")
      for (let i = 0; i + 5 < v.length; i += 6) {
        const p = v.slice(i, i + 6).map((value, j) => round(value + (own ? (j % 2 ? y : x) : 0)));
        [x, y] = [Number(p[4]), Number(p[5])];
        out.push(`${p.join(" ")} c`);
      }
    else
      for (let i = 0; i + 1 < v.length; i += 2) {
        [x, y] = [v[i]! + (own ? x : 0), v[i + 1]! + (own ? y : 0)];
        if (kind === "M" && i === 0) [x0, y0] = [x, y];
        out.push(`${round(x)} ${round(y)} ${kind === "M" && i === 0 ? "m" : "l"}`);
      }
  }
  return out.join(" ");
}

const LATIN = /^[\x20-\x7e\xa1-\xff–—‘’“”…−]*$/;
const LETTERS: Record<string, string> = {
  "–": "\x96",
  "—": "\x97",
  "‘": "\x91",
  "’": "\x92",
  "“": "\x93",
  "”": "\x94",
  "…": "\x85",
  "−": "\x96",
};

/** A text as a string of PDF, in the encoding of its standard fonts. */
export const literal = (text: string): string =>
  `(${[...text]
    .map((c) => LETTERS[c] ?? c)
    .join("")
    .replace(/[\\()]/g, (c) => `\\${c}`)})`;

const bytesOf = (text: string): Uint8Array => Uint8Array.from(text, (c) => c.charCodeAt(0));

async function deflated(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes as BlobPart]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Writer {
  private readonly objects: Uint8Array[] = [];

  add(text: string, stream?: Uint8Array): number {
    const head = bytesOf(text);
    const parts = stream ? [head, bytesOf("\nstream\n"), stream, bytesOf("\nendstream")] : [head];
    this.objects.push(joined(parts));
    return this.objects.length;
  }

  set(index: number, text: string): void {
    this.objects[index - 1] = bytesOf(text);
  }

  file(root: number, info: number): Uint8Array {
    const parts = [bytesOf("%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")];
    let at = parts[0]!.length;
    const places = this.objects.map((object, i) => {
      const start = at;
      const part = joined([bytesOf(`${i + 1} 0 obj\n`), object, bytesOf("\nendobj\n")]);
      parts.push(part);
      at += part.length;
      return start;
    });
    const table = places.map((place) => `${String(place).padStart(10, "0")} 00000 n \n`).join("");
    const count = this.objects.length + 1;
    parts.push(
      bytesOf(
        `xref\n0 ${count}\n0000000000 65535 f \n${table}trailer\n<< /Size ${count} /Root ${root} 0 R /Info ${info} 0 R >>\nstartxref\n${at}\n%%EOF\n`,
      ),
    );
    return joined(parts);
  }
}

function joined(parts: Uint8Array[]): Uint8Array {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** A text for the file's description, in any script. */
const described = (text: string): string =>
  `<FEFF${[...Array(text.length).keys()].map((i) => text.charCodeAt(i).toString(16).padStart(4, "0")).join("")}>`;

/** The PDF of a picture that stands by itself; `says` is kept in the file. */
export async function pdfOf(svg: string, says: string): Promise<Uint8Array> {
  const root = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  const box = root.getAttribute("viewBox")!.split(/\s+/).map(Number) as [number, number, number, number];
  const shown = parseFloat(root.getAttribute("width")!);
  const millimetres = root.getAttribute("width")!.endsWith("mm");
  const scale = ((millimetres ? (shown * 72) / 25.4 : shown * POINT) || 1) / box[2];
  const [width, height] = [box[2] * scale, box[3] * scale];
  const writer = new Writer();
  const images: string[] = [];
  const states = new Map<string, string>();
  const fonts = ["Helvetica", "Helvetica-Bold", "Helvetica-Oblique"].map((font) =>
    writer.add(`<< /Type /Font /Subtype /Type1 /BaseFont /${font} /Encoding /WinAnsiEncoding >>`),
  );
  const measure = document.createElement("canvas").getContext("2d")!;
  const opacity = (value: number): string => {
    const key = value.toFixed(2);
    if (!states.has(key)) states.set(key, `/G${states.size}`);
    return `${states.get(key)} gs`;
  };
  const picture = async (canvas: HTMLCanvasElement): Promise<string> => {
    const { data } = canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height);
    const [colours, alpha] = [new Uint8Array((data.length / 4) * 3), new Uint8Array(data.length / 4)];
    for (let i = 0; i < alpha.length; i++) {
      colours.set(data.subarray(4 * i, 4 * i + 3), 3 * i);
      alpha[i] = data[4 * i + 3]!;
    }
    const about = `/Type /XObject /Subtype /Image /Width ${canvas.width} /Height ${canvas.height} /BitsPerComponent 8 /Filter /FlateDecode`;
    const [seen, mask] = [await deflated(colours), await deflated(alpha)];
    const soft = writer.add(`<< ${about} /ColorSpace /DeviceGray /Length ${mask.length} >>`, mask);
    const id = writer.add(
      `<< ${about} /ColorSpace /DeviceRGB /SMask ${soft} 0 R /Length ${seen.length} >>`,
      seen,
    );
    images.push(`/I${images.length} ${id} 0 R`);
    return `/I${images.length - 1} Do`;
  };
  const matrix = (m: Matrix) => `${m.map(round).join(" ")} cm`;
  const number = (element: Element, name: string) => Number(element.getAttribute(name) ?? 0);
  const inherited = (element: Element, name: string): string | null => {
    for (let at: Element | null = element; at; at = at.parentElement)
      if (at.hasAttribute(name)) return at.getAttribute(name);
    return null;
  };
  const painted = (element: Element, d: string): string => {
    const fill = colourOf(inherited(element, "fill"));
    const stroke = colourOf(element.getAttribute("stroke"));
    const faint = Number(element.getAttribute("opacity") ?? 1);
    if (!fill && !stroke) return "";
    const paint = fill && stroke ? "B" : fill ? "f" : "S";
    return [
      opacity(faint * (fill?.[3] ?? stroke?.[3] ?? 1)),
      fill && `${fill.slice(0, 3).map(round).join(" ")} rg`,
      stroke &&
        `${stroke.slice(0, 3).map(round).join(" ")} RG ${round(number(element, "stroke-width") || 1)} w 1 J`,
      d,
      paint,
    ]
      .filter(Boolean)
      .join(" ");
  };
  const letters = async (element: Element): Promise<string> => {
    const text = element.textContent ?? "";
    const size = parseFloat(inherited(element, "font-size") ?? "12");
    const bold = Number(element.getAttribute("font-weight") ?? 400) > 500;
    const italic = element.getAttribute("font-style") === "italic";
    const face = `${italic ? "italic " : ""}${bold ? "700 " : ""}`;
    measure.font = `${face}${size}px Helvetica, Arial, "Liberation Sans", sans-serif`;
    const wide = measure.measureText(text).width;
    const anchor = inherited(element, "text-anchor");
    const shift = anchor === "middle" ? wide / 2 : anchor === "end" ? wide : 0;
    const own = transformOf(element.getAttribute("transform"));
    const place = times(own, [1, 0, 0, 1, number(element, "x") - shift, number(element, "y")]);
    const ink = colourOf(inherited(element, "fill")) ?? [0, 0, 0, 1];
    if (LATIN.test(text)) {
      const font = bold ? "/F1" : italic ? "/F2" : "/F0";
      const flip = times(place, [1, 0, 0, -1, 0, 0]);
      return `q ${opacity(ink[3])} ${matrix(flip)} BT ${font} ${round(size)} Tf ${ink.slice(0, 3).map(round).join(" ")} rg ${literal(text)} Tj ET Q`;
    }
    // Letters that the standard fonts lack are drawn by the browser, fine enough for print.
    const fine = 8;
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil((wide + 4) * fine);
    canvas.height = Math.ceil(1.6 * size * fine);
    const context = canvas.getContext("2d")!;
    context.scale(fine, fine);
    context.font = `${face}${size}px system-ui, "DejaVu Sans", sans-serif`;
    context.fillStyle = `rgb(${ink
      .slice(0, 3)
      .map((c) => Math.round(255 * c))
      .join(",")})`;
    context.fillText(text, 2, 1.2 * size);
    const [w, h] = [canvas.width / fine, canvas.height / fine];
    return `q ${matrix(times(place, [w, 0, 0, -h, -2, h - 1.2 * size]))} ${await picture(canvas)} Q`;
  };
  const draw = async (element: Element): Promise<string> => {
    const inside = async () => (await Promise.all([...element.children].map(draw))).join("\n");
    const own = transformOf(element.getAttribute("transform"));
    const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => number(element, name)) as [
      number,
      number,
      number,
      number,
    ];
    switch (element.localName) {
      case "rect": {
        const [rw, rh] = [
          element.getAttribute("width") === "100%" ? box[2] : w,
          element.getAttribute("height") === "100%" ? box[3] : h,
        ];
        return `q ${matrix(own)} ${painted(element, `${round(x)} ${round(y)} ${round(rw)} ${round(rh)} re`)} Q`;
      }
      case "path":
        return `q ${matrix(own)} ${painted(element, pathOf(element.getAttribute("d") ?? ""))} Q`;
      case "text":
        return letters(element);
      case "image": {
        const image = new Image();
        image.src = element.getAttribute("href")!;
        await image.decode();
        const canvas = document.createElement("canvas");
        canvas.width = image.width;
        canvas.height = image.height;
        canvas.getContext("2d")!.drawImage(image, 0, 0);
        return `q ${matrix(times(own, [w, 0, 0, -h, x, y + h]))} ${await picture(canvas)} Q`;
      }
      case "g":
        return `q ${matrix(own)} ${await inside()} Q`;
      case "svg": {
        const view = element.getAttribute("viewBox")?.split(/\s+/).map(Number) as
          | [number, number, number, number]
          | undefined;
        if (element === root || !view) return inside();
        const fit: Matrix = [
          w / view[2],
          0,
          0,
          h / view[3],
          x - (view[0] * w) / view[2],
          y - (view[1] * h) / view[3],
        ];
        return `q ${matrix(fit)} ${view.map(round).join(" ")} re W n ${await inside()} Q`;
      }
      default:
        return "";
    }
  };
  // One after the other: the numbers of images follow the order in which they are drawn.
  const drawn: string[] = [];
  for (const child of root.children) drawn.push(await draw(child));
  const page: Matrix = [scale, 0, 0, -scale, -box[0] * scale, height + box[1] * scale];
  const content = await deflated(bytesOf(`${matrix(page)}\n${drawn.join("\n")}`));
  const stream = writer.add(`<< /Filter /FlateDecode /Length ${content.length} >>`, content);
  const parts = {
    Font: fonts.map((id, i) => `/F${i} ${id} 0 R`).join(" "),
    XObject: images.join(" "),
    ExtGState: [...states].map(([value, name]) => `${name} << /ca ${value} /CA ${value} >>`).join(" "),
  };
  const resources = Object.entries(parts)
    .map(([name, inside]) => `/${name} << ${inside} >>`)
    .join(" ");
  const pages = writer.add("");
  const sheet = writer.add(
    `<< /Type /Page /Parent ${pages} 0 R /MediaBox [0 0 ${round(width)} ${round(height)}] /Resources << ${resources} >> /Contents ${stream} 0 R >>`,
  );
  writer.set(pages, `<< /Type /Pages /Kids [${sheet} 0 R] /Count 1 >>`);
  const catalog = writer.add(`<< /Type /Catalog /Pages ${pages} 0 R >>`);
  const info = writer.add(`<< /Title ${described("Regard")} /Subject ${described(says)} >>`);
  return writer.file(catalog, info);
}
