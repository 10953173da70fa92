// The connection to the server: states and changes in, and how it stands with the connection.

const silence = 16000; // three beats of the server and a little
const longest = 10000;

const hidden = 10000; // between requests of a hidden tab

// follow keeps the page up to date for as long as it is open, and continues after a lost connection. Browsers open six connections per
// host: a hidden tab holds none and asks for news now and then; of visible tabs, the server ends all streams but two after the news.
export function follow({onDelta, onWatch, onBeat, onStatus}) {
  let source, last = '', heard = 0, pause = 1000, timer, ended = false;

  function open() {
    clearTimeout(timer);
    source?.close();
    heard = Date.now();
    ended = false;
    source = new EventSource('/api/stream?' + new URLSearchParams({...last && {last}, ...document.hidden && {once: ''}}));
    source.addEventListener('state', data(onDelta));
    source.addEventListener('delta', data(onDelta));
    source.addEventListener('watch', data(onWatch));
    source.addEventListener('beat', data((beat) => onBeat(beat.now)));
    source.addEventListener('end', data(() => {
      ended = true;
      if (document.hidden) source.close();
    }));
    source.addEventListener('error', () => {
      // The browser comes back by itself unless the server refused: a token, or too many pages.
      if (source.readyState === EventSource.CLOSED) again();
      if (!ended) onStatus(false, heard);
      ended = false;
    });
  }

  const data = (take) => (event) => {
    heard = Date.now();
    pause = 1000;
    if (event.lastEventId) last = event.lastEventId;
    onStatus(true);
    take(JSON.parse(event.data));
  };

  function again() {
    timer = setTimeout(open, pause);
    pause = Math.min(2 * pause, longest);
    ask('/api/about').catch(() => { /* not there, or the token is asked for again */ });
  }

  setInterval(() => {
    if (Date.now() - heard < (document.hidden ? hidden : silence)) return;
    if (!document.hidden) onStatus(false, heard); // a connection that died unnoticed, or a machine that slept
    open();
  }, 2000);
  addEventListener('online', () => { if (source.readyState !== EventSource.OPEN) open(); });
  document.addEventListener('visibilitychange', open);
  open();
}

// send tries a few times: browsers give up all that is under way when the machine's network changes, and nothing that is sent here
// does anything that could be done twice.
async function send(path, options) {
  for (let tries = 1; ; tries++) {
    try {
      return await fetch(path, options);
    } catch (error) {
      if (options.signal.aborted) throw error;
      if (tries === 4) throw new Error('The server does not answer.', {cause: error});
    }
    await new Promise((done) => setTimeout(done, 150 * tries));
  }
}

let moment = null; // of a recording, that questions are about
export function setMoment(at) { moment = at; }

// Lengths of time after which a question fails. The server itself gives up explanations and forecasts after three minutes.
const patience = {usual: 30000, long: 200000};
export const session = new EventTarget(); // "gone": the server asks for the token again; "open": it does not

const questions = '/berth.v1alpha1.QueryService/'; // defined in api/berth/v1alpha1/query.proto

// question asks the query service. The answer has what is missing in it, besides its own fields.
export async function question(method, request, signal) {
  const answer = await ask(questions + method, {...request, ...moment !== null && {asOf: new Date(moment).toISOString()}}, signal);
  return {...answer, missing: answer.basis?.limits};
}

// ask puts a question to the server; what it refuses is an Error with its words.
export async function ask(path, body, signal) {
  const long = path.startsWith(questions), limit = long ? patience.long : patience.usual, late = AbortSignal.timeout(limit);
  if (moment !== null && !long) path += (path.includes('?') ? '&' : '?') + 'at=' + moment;
  const options = {signal: signal ? AbortSignal.any([signal, late]) : late};
  if (body !== undefined) Object.assign(options, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)});
  try {
    const answer = await send(path, options), said = await answer.json().catch((error) => { if (late.aborted) throw error; return {}; });
    session.dispatchEvent(new Event(answer.status === 401 ? 'gone' : 'open'));
    if (answer.status === 401) throw new Error('The session has ended. Log in again.');
    if (!answer.ok) throw new Error(said.error || said.message || 'The server refuses: ' + answer.status);
    return said;
  } catch (error) {
    if (!late.aborted || signal?.aborted) throw error;
    throw new Error(`No answer within ${limit / 1000} s. The server is busy, or other tabs hold the browser’s connections to it: close some and try again.`, {cause: error});
  }
}
