package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

func TestOnlyKnownCallersGetIn(t *testing.T) {
	w := newWorld(t).serve(t)
	w.policy.allowed = func(user, _ string) bool { return user == "kube-apiserver" || user == "reader" }
	w.policy.tokens["other"] = "nobody-special"
	for _, c := range []struct {
		name        string
		certificate *tls.Certificate
		token       string
		code        int
	}{
		{"nothing", nil, "", 401},
		{"a certificate of the cluster", w.authority.client(t, "kube-apiserver"), "", 200},
		{"a certificate of the cluster, of somebody who may not", w.authority.client(t, "intruder"), "", 403},
		{"a certificate of somebody else's", newAuthority(t).client(t, "kube-apiserver"), "", 401},
		{"an expired certificate", w.authority.client(t, "kube-apiserver", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}), "", 401},
		{"a certificate that is not valid yet", w.authority.client(t, "kube-apiserver", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}), "", 401},
		{"a server's certificate", w.authority.client(t, "kube-apiserver", func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), "", 401},
		{"a certificate without a name", w.authority.client(t, ""), "", 401},
		{"a token", nil, "good", 200},
		{"a token of somebody who may not", nil, "other", 403},
		{"a token that is nobody's", nil, "bad", 401},
		{"a token that is much too long", nil, strings.Repeat("x", guard.MaxToken+1), 401},
		{"a wrong certificate and a good token", newAuthority(t).client(t, "kube-apiserver"), "good", 200},
	} {
		code, body := w.get(t, c.certificate, c.token, "GET", "/pods")
		if code != c.code {
			t.Errorf("%s: %d, wanted %d: %s", c.name, code, c.code, body)
		}
		if code != 200 && strings.Contains(body, "web") {
			t.Errorf("%s: is told: %s", c.name, body)
		}
	}
	for _, asked := range w.policy.questions() {
		if strings.Contains(asked, "xxx") {
			t.Error("the API server was bothered with a token that cannot be one")
		}
	}
}

// direct asks without a network, with a token.
func (w *world) direct(method, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	out := httptest.NewRecorder()
	w.ServeHTTP(out, r)
	return out
}

func TestBasicAndEmptyCredentialsAreNone(t *testing.T) {
	w := newWorld(t)
	for _, header := range []string{"Basic YWRtaW46YWRtaW4=", "Bearer", "Bearer ", "bearer  ", "good", "Digest good", "\x00"} {
		r := httptest.NewRequest("GET", "/pods", nil)
		r.Header.Set("Authorization", header)
		out := httptest.NewRecorder()
		w.ServeHTTP(out, r)
		if out.Code != 401 {
			t.Errorf("%q: %d", header, out.Code)
		}
	}
	if asked := w.policy.questions(); len(asked) > 0 {
		t.Errorf("asked %v", asked)
	}
}

func TestAnswersAreRememberedForAMoment(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		for range 5 {
			if code := w.direct("GET", "/pods", "good").Code; code != 200 {
				t.Fatal(code)
			}
			if code := w.direct("GET", "/pods", "bad").Code; code != 401 {
				t.Fatal(code)
			}
		}
		want := []string{"who is good", "may reader get nodes/pods", "who is bad"}
		if asked := w.policy.questions(); !slices.Equal(asked, want) {
			t.Errorf("asked %v, wanted %v", asked, want)
		}
		// The token is revoked, and the right is taken away.
		w.policy.set(func() { delete(w.policy.tokens, "good") })
		time.Sleep(guard.Remember + time.Second)
		if code := w.direct("GET", "/pods", "good").Code; code != 401 {
			t.Errorf("with a token that was revoked: %d", code)
		}
		w.policy.set(func() { w.policy.tokens["bad"] = "reader"; w.policy.allowed = nil })
		time.Sleep(guard.Remember + time.Second)
		if code := w.direct("GET", "/pods", "bad").Code; code != 403 {
			t.Errorf("without the right: %d", code)
		}
		w.policy.set(func() { w.policy.allowed = everything })
		time.Sleep(guard.Remember + time.Second)
		if code := w.direct("GET", "/pods", "bad").Code; code != 200 {
			t.Errorf("with the right: %d", code)
		}
	})
}

func TestAnAPIServerThatFailsLetsNobodyIn(t *testing.T) {
	w := newWorld(t)
	w.policy.fault = errors.New("down")
	if out := w.direct("GET", "/pods", "good"); out.Code != 401 {
		t.Errorf("not identified: %d", out.Code)
	}
	w.policy.set(func() { w.policy.fault = nil })
	if out := w.direct("GET", "/pods", "good"); out.Code != 200 {
		t.Errorf("the fault was remembered: %d", out.Code)
	}
	w.policy.set(func() { w.policy.fault = errors.New("down") })
	if out := w.direct("GET", "/stats/summary", "good"); out.Code != 500 || strings.Contains(out.Body.String(), "down") {
		t.Errorf("not asked what may be done: %d %s", out.Code, out.Body)
	}
}

// The text cases: what the API server is asked for a request, and what comes of it.
func TestWhatIsAskedForARequest(t *testing.T) {
	datadriven.RunTest(t, "testdata/authorization.txt", func(t *testing.T, d *datadriven.TestData) string {
		w := newWorld(t)
		var allowed []string
		d.MaybeScanArgs(t, "allow", &allowed)
		w.policy.allowed = func(_, question string) bool {
			return slices.Contains(allowed, strings.ReplaceAll(question, " ", ":"))
		}
		method, path, _ := strings.Cut(d.Input, " ")
		out := w.direct(method, path, "good")
		var told strings.Builder
		for _, asked := range w.policy.questions() {
			if question, ok := strings.CutPrefix(asked, "may reader "); ok {
				fmt.Fprintln(&told, question)
			}
		}
		fmt.Fprintf(&told, "%d %s\n", out.Code, http.StatusText(out.Code))
		if out.Code != 200 {
			fmt.Fprintln(&told, strings.TrimSpace(out.Body.String()))
		}
		return told.String()
	})
}

func (w *world) answerTo(r *http.Request) *httptest.ResponseRecorder {
	out := httptest.NewRecorder()
	w.ServeHTTP(out, r)
	return out
}

// Whoever was not let in keeps no connection: 512 of them, as many as the server holds at all, must
// not keep the API server from the logs of its pods.
func TestRefusedCallersDoNotStandInTheWay(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.limits.connections = guard.Bounds{Strangers: 8, PerSource: 8, Admitted: 2}
		o.limits.idle, o.limits.headerTime = time.Hour, time.Hour
	}).serve(t)
	w.policy.tokens["other"] = "nobody-special"
	w.policy.allowed = func(user, _ string) bool { return user == "kube-apiserver" || user == "reader" }
	for i := range 32 {
		conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		token := []string{"bad", "other"}[i%2]
		if _, err := fmt.Fprintf(conn, "GET /pods HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n\r\n", token); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(answer), "Connection: close") {
			t.Fatalf("with the token %s the connection is kept: %v %q", token, err, answer)
		}
	}
	// Nor does who says nothing at all, in TLS or beneath it.
	for i := range 32 {
		conn, err := net.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
		}
	}
	if code, body := w.get(t, w.authority.client(t, "kube-apiserver"), "", "GET", "/pods"); code != 200 {
		t.Errorf("the API server is told %d %s", code, body)
	}
}

func TestWhoAsksTooMuchIsToldSo(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		busy := 0
		for i := range 200 {
			out := w.direct("GET", "/pods", fmt.Sprint("made up ", i))
			switch out.Code {
			case http.StatusTooManyRequests:
				busy++
			case http.StatusUnauthorized:
			default:
				t.Fatal(out.Code)
			}
		}
		if asked := len(w.policy.questions()); busy < 100 || asked > 100 {
			t.Errorf("of 200 made-up tokens %d were refused unasked, and the API server was asked %d times", busy, asked)
		}
	})
}
