// Starts the page. Browsers give up all that is loading when the machine's network changes, as it does whenever a container starts:
// the page is loaded again then.

const tries = Number(sessionStorage.getItem('berth.tries') || 0);

import('/main.js').then(() => sessionStorage.removeItem('berth.tries'), (error) => {
  sessionStorage.setItem('berth.tries', String(tries + 1));
  if (tries >= 10) throw error;
  setTimeout(() => location.reload(), 200 * (tries + 1));
});
