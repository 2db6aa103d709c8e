// Numbers out of bytes: base64, and floats of 16, 24 and 32 bits.

export function fromBase64(text: string): Uint8Array {
  const own = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array };
  if (own.fromBase64) return own.fromBase64(text); // newer browsers do it themselves, some ten times faster
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

let halves: Float32Array | null = null;

/** All 65,536 values of a 16-bit float: looking one up is faster than taking it apart. */
function halfTable(): Float32Array {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let h = 0; h < 65536; h++) {
    const sign = h & 0x8000 ? -1 : 1;
    const exponent = (h >> 10) & 31;
    const fraction = h & 1023;
    let value: number;
    if (exponent === 0) value = fraction * 2 ** -24;
    else if (exponent === 31) value = fraction ? NaN : Infinity;
    else value = (1 + fraction / 1024) * 2 ** (exponent - 15);
    halves[h] = sign * value;
  }
  return halves;
}

export function float16(bytes: Uint8Array): Float32Array {
  const table = halfTable();
  const out = new Float32Array(bytes.length >> 1);
  for (let i = 0; i < out.length; i++) out[i] = table[bytes[2 * i]! | (bytes[2 * i + 1]! << 8)]!;
  return out;
}

/** The upper three bytes of a 32-bit float: a relative error of at most 2^-16 in three quarters of the space. */
export function float24(bytes: Uint8Array): Float32Array {
  const n = bytes.length / 3;
  const bits = new Uint32Array(n);
  for (let i = 0; i < n; i++) {
    bits[i] = ((bytes[3 * i]! << 8) | (bytes[3 * i + 1]! << 16) | (bytes[3 * i + 2]! << 24)) >>> 0;
  }
  return new Float32Array(bits.buffer);
}

export function float32(bytes: Uint8Array): Float32Array {
  return new Float32Array(bytes.slice().buffer);
}

export interface TensorPlace {
  dtype: "float32" | "float24" | "float16" | "uint8" | "int32";
  shape: number[];
  at: number; // first byte
  bytes: number;
}

export function tensorAt(all: Uint8Array, place: TensorPlace): Float32Array {
  const part = all.subarray(place.at, place.at + place.bytes);
  if (place.dtype === "float32") return float32(part);
  if (place.dtype === "float24") return float24(part);
  if (place.dtype === "float16") return float16(part);
  if (place.dtype === "uint8") return Float32Array.from(part);
  return Float32Array.from(new Int32Array(part.slice().buffer));
}
