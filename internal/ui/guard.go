// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/question"
	access "github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/usage"
)

// policy lets the page load content only from this server. With Trusted Types the browser refuses
// to convert text into markup, regardless of the page's code. Inline scripts and styles are refused
// as well.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard admits requests with the token, and rejects requests on behalf of other sites. The token is
// also required on a loopback address, because every user of the machine can reach it, and the
// dashboard has the permissions of the user that started it. The guard checks the host name, the
// origin and the token of every request, in this order.
type guard struct {
	next   http.Handler
	token  string
	cookie string   // name of the cookie
	secure bool     // the dashboard is served over HTTPS
	names  []string // permitted host names in addition to localhost and IP addresses
	// patience is the maximum time for a request body to arrive.
	patience time.Duration
}

// sendWithin is the patience for browsers. A network that needs longer for a megabyte could not
// carry the stream.
const sendWithin = 15 * time.Second

// NewToken returns a token that cannot be guessed. It has 192 bits.
func NewToken() string {
	random := make([]byte, 24)
	_, _ = rand.Read(random) // never fails
	return base64.RawURLEncoding.EncodeToString(random)
}

// ServeHTTP implements http.Handler. The headers are set before anything else, so that errors have
// them as well.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // without a policy, browsers omit the origin of a form
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if r.ContentLength != 0 { // for all methods, because the server reads even an unexpected body before it continues
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.patience)) // a test's recorder has no deadlines
		r.Body = http.MaxBytesReader(w, r.Body, question.MostBody)
	}
	takeWithin(w, askWithin+writeWithin) // limit of the longest request; writes have a separate limit
	switch {
	case !g.knownHost(r.Host):
		http.Error(w, "this page is not served under that name; see --allowed-host", http.StatusMisdirectedRequest)
	case !g.sameOrigin(r):
		http.Error(w, "requests from other sites are refused", http.StatusForbidden)
	// The form posts to its own address, so that the browser keeps the remaining parameters.
	case r.URL.Path == "/" && r.Method == http.MethodPost:
		// A token is short.
		r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
		g.logIn(w, r, r.PostFormValue("token"))
	// From here on the connection belongs to a known caller; see connections.
	case g.isAllowed(r):
		if !access.Admit(r) {
			access.Refuse(w, http.StatusServiceUnavailable, "too many connections are open")
			return
		}
		g.next.ServeHTTP(w, r)
	case r.URL.Path == "/" && r.URL.Query().Has("token"):
		g.logIn(w, r, r.URL.Query().Get("token"))
	// This case follows the check of the token: with the token, these files are served like any
	// other.
	case slices.Contains(open, r.URL.Path):
		g.next.ServeHTTP(w, r)
	case r.URL.Path == "/":
		serveLogin(w, false)
	default:
		http.Error(w, "a token is needed: open the address that berth ui or berth up printed", http.StatusUnauthorized)
	}
}

// open lists the public files: the style and the icon of the login page.
var open = []string{"/style.css", "/icon.svg"}

// knownHost rejects unknown host names, which a foreign site may have pointed at this server (DNS
// rebinding): the site's scripts would have the same origin. Requests to an IP address are not
// affected.
func (g *guard) knownHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host // without a port
		if v6, ok := strings.CutPrefix(host, "["); ok {
			name = strings.TrimSuffix(v6, "]")
		}
	}
	return strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil ||
		slices.ContainsFunc(g.names, func(own string) bool { return strings.EqualFold(own, name) })
}

// sameOrigin rejects requests made by a browser on behalf of another site. Other sites may link to
// the page itself. Browsers send Origin with every request that could change something, and current
// browsers send Sec-Fetch-Site with all requests. Other clients, such as curl, send neither, and
// need only the token.
func (g *guard) sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		from, err := url.Parse(origin)
		if err != nil || from.Host != r.Host || (from.Scheme == "https") != g.secure {
			return false
		}
	}
	site := r.Header.Get("Sec-Fetch-Site")
	linked := r.URL.Path == "/" && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate"
	return site == "" || site == "same-origin" || site == "none" || linked
}

// isAllowed reports whether the request has the token or the cookie derived from it. A wrong bearer
// token is rejected even with a valid cookie.
func (g *guard) isAllowed(r *http.Request) bool {
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return constantTimeEqual(bearer, g.token)
	}
	cookie, err := r.Cookie(g.cookie)
	return err == nil && constantTimeEqual(cookie.Value, g.sessionCookie())
}

// constantTimeEqual compares two strings in constant time. It compares hashes of equal length, so
// that even the length of the token does not leak.
func constantTimeEqual(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// sessionCookie returns the value of the cookie, which is derived from the token and invalid for
// other tokens. Sessions are not stored: they end when the token changes.
func (g *guard) sessionCookie() string {
	mac := hmac.New(sha256.New, []byte(g.token))
	mac.Write([]byte("berth ui session"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// logIn sets the cookie, and redirects to the same address without the token. The token is thus
// neither kept in the browser's history nor sent as a referrer.
func (g *guard) logIn(w http.ResponseWriter, r *http.Request, token string) {
	if !constantTimeEqual(token, g.token) {
		serveLogin(w, true)
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: g.cookie, Value: g.sessionCookie(), Path: "/", HttpOnly: true, Secure: g.secure, SameSite: http.SameSiteStrictMode,
	})
	rest := r.URL.Query()
	// Keep the rest of the address, such as the selection.
	rest.Del("token")
	http.Redirect(w, r, (&url.URL{Path: "/", RawQuery: rest.Encode()}).String(), http.StatusSeeOther)
}

// errNoToken describes the required content of a token file.
var errNoToken = errors.New("must contain one word of 16 characters or more")

// ReadToken reads the token in a file.
func ReadToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || strings.ContainsAny(token, " \t\r\n") {
		return "", usage.Errorf("%s: %w", file, errNoToken)
	}
	return token, nil
}

// KeepToken creates a token in the file if it has none. The token outlives berth up, so that an
// open browser tab can reconnect.
func KeepToken(file string) error {
	_, err := ReadToken(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoToken) {
		return err
	}
	return os.WriteFile(file, []byte(NewToken()+"\n"), 0o600)
}
