// Tokens as people read them: which are special, and which pieces make one word.

const SPECIAL = /^(\[[A-Z]+\]|<\/?[^<>\s]+>)$/; // as heads/tokens.py has it

export function isSpecial(token: string): boolean {
  return SPECIAL.test(token.trim());
}

export function label(token: string): string {
  const bare = token.replace(/^▁/, " ").trim();
  return bare || (token ? "␣" : "∅");
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
  tokens.forEach((token, i) => {
    const last = words[words.length - 1];
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
