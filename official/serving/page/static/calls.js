// What the page asks the server: TensorFlow Serving's REST contract.

const TIMEOUT_MS = 60_000;
const CALL_INSTANCES = 32; // of a call
const model = `v1/models/${encodeURIComponent(document.documentElement.dataset.model)}`;
let token = "";

/** What went wrong with a call: `kind` is "token" where the server asks for one, "loading" while it loads the model, else "". */
export class CallError extends Error {
  constructor(message, kind = "") {
    super(message);
    this.kind = kind;
  }
}

/** Keeps the token for the calls that follow; nothing stores it. */
export function setToken(text) {
  token = text;
}

/** Returns {version, signatures, labels}: the names of what the model can be asked, and of a classifier's labels. */
export async function describe() {
  const { found } = await call(`${model}/metadata`);
  const signatures = found.metadata?.signature_def?.signature_def;
  if (!signatures) {
    throw new CallError("The server's answer names no signatures: is it a server of this model?");
  }
  const version = String(found.model_spec?.version ?? "");
  return { version, signatures: new Set(Object.keys(signatures)), labels: found.metadata.labels?.value ?? [] };
}

/** Returns whether the server has a version of the model that is ready, and the number of the one that it loads. */
export async function progress() {
  const versions = (await call(model)).found.model_version_status ?? [];
  const isReady = versions.some(({ state }) => state === "AVAILABLE");
  return { isReady, loading: versions.find(({ state }) => state === "LOADING")?.version ?? "" };
}

/**
 * Returns {predictions, cut}: the predictions of a signature for some instances, in their order, and the numbers of those
 * with a text that was cut. Many are asked for in several calls.
 */
export async function predict(signature, instances) {
  const all = [];
  const cut = [];
  while (all.length < instances.length) {
    const asked = instances.slice(all.length, all.length + CALL_INSTANCES);
    const { found, response } = await call(`${model}:predict`, bodyOf(signature, asked));
    const { predictions } = found;
    if (!Array.isArray(predictions) || predictions.length !== asked.length) {
      throw new CallError("The server's answer has no predictions.");
    }
    const numbers = response.headers.get("X-Truncated")?.split(",") ?? [];
    cut.push(...numbers.map((number) => all.length + Number(number)));
    all.push(...predictions);
  }
  return { predictions: all, cut };
}

/** Returns the same call as a command of a shell. */
export function asCommand(signature, instances) {
  const quoted = bodyOf(signature, instances).replaceAll("'", "'\\''");
  const parts = ["curl", ...(token ? ['-H "Authorization: Bearer $TOKEN"'] : []), `-d '${quoted}'`];
  return `${parts.join(" ")} '${new URL(`${model}:predict`, document.baseURI)}'`;
}

function bodyOf(signature, instances) {
  return JSON.stringify({ signature_name: signature, instances });
}

async function call(address, body) {
  const { response, text } = await send(address, body);
  if (response.status === 401) {
    throw new CallError(token ? "The server does not take this token." : "", "token");
  }
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    // Not this server's words: the status has to do.
  }
  if (!response.ok || !found) {
    const said = typeof found?.error === "string" ? found.error : "";
    const kind = said && response.status === 503 ? "loading" : "";
    throw new CallError(said || `The server answered with status ${response.status}, and nothing that can be read.`, kind);
  }
  return { found, response };
}

async function send(address, body) {
  const stop = new AbortController();
  const clock = setTimeout(() => stop.abort(), TIMEOUT_MS);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) {
    headers["Content-Type"] = "application/json";
  }
  try {
    const method = body ? "POST" : "GET";
    const response = await fetch(address, { method, headers, body, signal: stop.signal, cache: "no-store" });
    return { response, text: await response.text() };
  } catch {
    throw new CallError(whyNot(stop.signal.aborted));
  } finally {
    clearTimeout(clock);
  }
}

function whyNot(late) {
  if (late) {
    return `No answer within ${TIMEOUT_MS / 1000} seconds. The server may be busy: try again.`;
  }
  return navigator.onLine
    ? "The server cannot be reached. Is it running?"
    : "This device is offline. Connect it to the network and try again.";
}
