// The connection to the server: states and changes in, and how it stands with the connection.

const silence = 16000; // three beats of the server and a little
const longest = 10000;

// follow keeps a stream open for as long as the page is. It goes on where it was after a connection was lost.
export function follow({onDelta, onWatch, onBeat, onStatus}) {
  let source, last = '', heard = 0, pause = 1000, timer;

  function open() {
    clearTimeout(timer);
    heard = Date.now();
    source = new EventSource('/api/stream' + (last ? '?last=' + encodeURIComponent(last) : ''));
    source.addEventListener('state', data(onDelta));
    source.addEventListener('delta', data(onDelta));
    source.addEventListener('watch', data(onWatch));
    source.addEventListener('beat', data((beat) => onBeat(beat.now)));
    source.addEventListener('error', () => {
      onStatus(false, heard);
      // The browser comes back by itself unless the server refused: a token, or too many pages.
      if (source.readyState === EventSource.CLOSED) again();
    });
  }

  const data = (take) => (event) => {
    heard = Date.now();
    pause = 1000;
    if (event.lastEventId) last = event.lastEventId;
    onStatus(true);
    take(JSON.parse(event.data));
  };

  async function again() {
    timer = setTimeout(open, pause);
    pause = Math.min(2 * pause, longest);
    try {
      const answer = await fetch('/api/about');
      if (answer.status === 401) location.reload(); // the server asks for the token
    } catch { /* not there: the next try will tell */ }
  }

  setInterval(() => {
    if (Date.now() - heard < silence) return;
    onStatus(false, heard); // a connection that died unnoticed, or a machine that slept
    source.close();
    open();
  }, 2000);
  addEventListener('online', () => { if (source.readyState !== EventSource.OPEN) { source.close(); open(); } });
  open();
}

// send tries a few times: browsers give up all that is under way when the machine's network changes, and nothing that is sent here
// does anything that could be done twice.
async function send(path, options) {
  for (let tries = 1; ; tries++) {
    try {
      return await fetch(path, options);
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      if (tries === 4) throw new Error('The server does not answer.', {cause: error});
    }
    await new Promise((done) => setTimeout(done, 150 * tries));
  }
}

let moment = null; // of a recording, that questions are about
export function setMoment(at) { moment = at; }

// ask puts a question to the server; what it refuses is an Error with its words.
export async function ask(path, body, signal) {
  if (moment !== null) path += (path.includes('?') ? '&' : '?') + 'at=' + moment;
  const answer = await send(path, body === undefined ? {signal} : {
    method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body), signal,
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error || 'The server refuses: ' + answer.status);
  return said;
}
