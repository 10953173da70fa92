package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
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
		{"a token that is much too long", nil, strings.Repeat("x", maxToken+1), 401},
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
		time.Sleep(remember + time.Second)
		if code := w.direct("GET", "/pods", "good").Code; code != 401 {
			t.Errorf("with a token that was revoked: %d", code)
		}
		w.policy.set(func() { w.policy.tokens["bad"] = "reader"; w.policy.allowed = nil })
		time.Sleep(remember + time.Second)
		if code := w.direct("GET", "/pods", "bad").Code; code != 403 {
			t.Errorf("without the right: %d", code)
		}
		w.policy.set(func() { w.policy.allowed = everything })
		time.Sleep(remember + time.Second)
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

// A flood of made-up tokens is a queue here, not a flood at the API server, and does not grow without bound.
func TestAFloodOfTokensIsBounded(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(nil, nodeName, w.authority)
		underWay := 0
		var mu sync.Mutex
		answer := make(chan struct{})
		for i := range 3 * remembered {
			go func() {
				_, _ = ask(t.Context(), g, g.users, [32]byte{byte(i), byte(i >> 8)}, func(context.Context) (bool, error) {
					mu.Lock()
					underWay++
					mu.Unlock()
					<-answer
					return false, nil
				})
			}()
		}
		synctest.Wait()
		if underWay != asking {
			t.Errorf("%d questions at once", underWay)
		}
		close(answer)
		synctest.Wait()
		if kept := len(g.users.Keys()); kept != remembered || underWay != 3*remembered {
			t.Errorf("%d answers of %d are kept", kept, underWay)
		}
	})
}

// Who cannot be asked about within the time is not let in.
func TestAQuestionThatWaitsTooLongIsGivenUp(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(nil, nodeName, w.authority)
		for range asking {
			g.questions <- struct{}{}
		}
		_, err := ask(t.Context(), g, g.users, [32]byte{}, func(context.Context) (bool, error) { return true, nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
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
