// Numbers, sizes and times as people read them.

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
}

/** 1 queue, 2 queues */
export const several = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

/** 950, 12.3 K, 4.5 M */
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "K"]]) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "K" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 10 ? 1 : scaled < 100 ? 1 : 0)} ${unit}`;
    }
  }
  return value >= 100 || Number.isInteger(value) ? count(value) : value.toFixed(1);
}

export const rate = (value) => (value === null || value === undefined ? "–" : `${short(value)}/s`);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return unit === "B" ? `${Math.round(size)} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export const byteRate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

/** 850 ms, 12 s, 3 min, 4.5 h, 12 d */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  for (const [size, unit] of [[86400e3, "d"], [3600e3, "h"], [60e3, "min"]]) {
    if (ms >= 2 * size) return `${(ms / size).toFixed(ms < 10 * size ? 1 : 0)} ${unit}`;
  }
  return `${Math.round(ms / 1000)} s`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const moment = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
  return `${day} ${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
}

export const clock = (ms) => time(ms).slice(11);
export const ago = (ms, now = Date.now()) => (ms === null || ms === undefined ? "–" : `${duration(Math.max(0, now - ms))} ago`);
/** A message's state, for people: the API calls the delayed ones `parked` and those in flight `held`. */
export const stateName = (state) => ({ parked: "delayed", held: "in flight" })[state] ?? state;
export const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
