// Tokens as people read them: which are special, and which pieces make one word.

import { h } from "./dom";
import { SPECIAL_TOKEN } from "./registry";

export function isSpecial(token: string): boolean {
  return SPECIAL_TOKEN.test(token.trim());
}

export function label(token: string): string {
  const bare = token.replace(/^▁/, " ").trim();
  // Signs that steer a terminal have pictures of their own.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is looked for
  const shown = bare.replace(/[\0-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)));
  return shown || (token ? "␣" : "∅");
}

/** A token's name in a sentence: apart from its surroundings, which may be written in the other direction. */
export function name(text: string, kind: "query" | "key" | "word" = "word"): HTMLElement {
  return h("b", { class: kind }, h("bdi", {}, text));
}

/** The two ends of a link by name; where the names are the same, with their positions. */
export function linkNames(
  rows: string[],
  cols: string[],
  query: number,
  key: number,
): { query: string; key: string } {
  const [q, k] = [labels(rows)[query]!, labels(cols)[key]!];
  return q === k && rows === cols ? { query: `${q} (${query})`, key: `${k} (${key})` } : { query: q, key: k };
}

const BYTES = /\\x[89a-f][0-9a-f]/; // part of a character, as the tokenizer spells its bytes

/** What tokens are called. Parts of one character (an emoji of several byte tokens) are called by it, counted. */
export function labels(tokens: string[]): string[] {
  return characters(tokens).flatMap(({ text, count }) =>
    count === 1 ? [label(text)] : Array.from({ length: count }, (_, i) => `${label(text)} ${i + 1}/${count}`),
  );
}

/** Tokens that together make one character, as that character; the others as they are. */
export function characters(tokens: string[]): { text: string; count: number }[] {
  const out: { text: string; count: number }[] = [];
  const bytesOf = (text: string) =>
    text
      .split(/(\\x[89a-f][0-9a-f])/)
      .flatMap((part) =>
        BYTES.test(part) ? [parseInt(part.slice(2), 16)] : [...new TextEncoder().encode(part)],
      );
  for (let i = 0; i < tokens.length; i++) {
    let made: { text: string; count: number } | null = null;
    const bytes: number[] = [];
    for (let j = i; j < tokens.length && BYTES.test(tokens[j]!) && !made; j++) {
      bytes.push(...bytesOf(tokens[j]!));
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
        made = { text, count: j - i + 1 };
      } catch {
        // Not a whole character yet.
      }
    }
    out.push(made ?? { text: tokens[i]!, count: 1 });
    i += (made?.count ?? 1) - 1;
  }
  return out;
}

const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** Whether a text runs from right to left: most of its letters do. */
export function rightToLeft(tokens: string[]): boolean {
  const letters = characters(tokens)
    .map(({ text }) => text)
    .join("")
    .match(/\p{L}/gu);
  if (!letters) return false;
  return letters.filter((letter) => RIGHT_TO_LEFT.test(letter)).length > letters.length / 2;
}

export interface Word {
  text: string;
  first: number;
  last: number; // exclusive
  special: boolean;
}

export type Spelling = "pieces" | "marked" | "spaced" | "single" | "plain";

const blank = (token: string): boolean => /^[\s␣]+$/.test(token);

/** How tokens say where words begin: "##s" (WordPiece), "▁" (SentencePiece), a space before (byte pairs),
 * tokens of their own for spaces (bytes), or not at all. */
export function spelling(tokens: string[]): Spelling {
  if (tokens.some((t) => t.startsWith("##"))) return "pieces";
  if (tokens.some((t) => t.startsWith("▁"))) return "marked";
  if (tokens.some((t) => t.length > 1 && t.startsWith(" "))) return "spaced";
  return tokens.some(blank) ? "single" : "plain";
}

export function wordsOf(tokens: string[], how: Spelling = spelling(tokens)): Word[] {
  const words: Word[] = [];
  const whole = characters(tokens).flatMap(({ text, count }) => [text, ...Array<string>(count - 1).fill("")]);
  whole.forEach((token, i) => {
    const last = words[words.length - 1];
    if (last && !token && tokens[i]) {
      last.last = i + 1;
      return;
    }
    const special = isSpecial(token);
    const letters = /^[\p{L}\p{N}'’]/u.test(token);
    const joins: Record<Spelling, boolean> = {
      pieces: token.startsWith("##"),
      marked: !token.startsWith("▁") && letters,
      spaced: letters && /[\p{L}\p{N}]$/u.test(last?.text ?? ""),
      single: !blank(token) && !blank(last?.text ?? " "),
      plain: false,
    };
    if (last && !special && !last.special && joins[how]) {
      last.text += token.replace(/^##/, "");
      last.last = i + 1;
    } else words.push({ text: token, first: i, last: i + 1, special });
  });
  return words.map((word) => ({ ...word, text: label(word.text) }));
}

/** The token of another text that stands for the same word, its n-th for our n-th; -1 where there is none. */
export function sameToken(from: string[], index: number, to: string[]): number {
  const wanted = from[index];
  if (wanted === undefined) return -1;
  const nth = from.slice(0, index).filter((t) => t === wanted).length;
  let seen = 0;
  let found = -1;
  for (let i = 0; i < to.length; i++) {
    if (to[i] !== wanted) continue;
    found = i;
    if (seen++ === nth) return i;
  }
  return found;
}
