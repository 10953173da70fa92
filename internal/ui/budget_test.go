// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/queryserver"
)

// TestAnswersHaveADeadline verifies that a client that does not read the response cannot block the
// handler and its connection forever.
func TestAnswersHaveADeadline(t *testing.T) {
	for name, answered := range map[string]func(w http.ResponseWriter){
		"an answer": func(w http.ResponseWriter) { writeJSON(w, http.StatusOK, "all of it") },
		"a refusal": func(w http.ResponseWriter) { writeError(w, http.StatusBadRequest, "no") },
		"a question": func(w http.ResponseWriter) {
			a := newAsker(nil, &Options{Parse: parseFew})
			_, handler := a.handler()
			r := httptest.NewRequest(http.MethodPost, "/"+whatIfPath, strings.NewReader("{}"))
			r.Header.Set("Content-Type", "application/json")
			a.limitRequests(handler).ServeHTTP(w, r)
		},
		"a file": func(w http.ResponseWriter) { serveFile(w, "index.html", http.StatusOK) },
	} {
		w := &deadline{ResponseRecorder: httptest.NewRecorder()}
		if answered(w); w.taken.IsZero() || time.Until(w.taken) > writeWithin {
			t.Errorf("%s is to be taken until %v", name, w.taken)
		}
	}
	w := &deadline{ResponseRecorder: httptest.NewRecorder()}
	guarded("").ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/", nil))
	if w.taken.IsZero() || time.Until(w.taken) > askWithin+writeWithin {
		t.Errorf("whatever is asked is to be taken until %v", w.taken)
	}
}

type deadline struct {
	*httptest.ResponseRecorder
	taken, sent time.Time
}

func (d *deadline) SetWriteDeadline(t time.Time) error { d.taken = t; return nil }
func (d *deadline) SetReadDeadline(t time.Time) error  { d.sent = t; return nil }

// TestAnAnswerMayTakeLongerThanItsQuestion verifies that the deadline of a request's body ends with
// the body.
func TestAnAnswerMayTakeLongerThanItsQuestion(t *testing.T) {
	a := newAsker(nil, nil)
	w, r := &deadline{ResponseRecorder: httptest.NewRecorder()}, httptest.NewRequest(http.MethodPost, "http://localhost/", strings.NewReader("{}"))
	r.URL.Path = "/" + explainPath
	r.Header.Set("Authorization", "Bearer "+token)
	during := time.Now()
	g := guarded()
	g.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w.(*deadline).sent.IsZero() {
			t.Error("the body may take any time")
		}
		a.limitRequests(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			during = w.(*deadline).sent
			if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{}" {
				t.Errorf("%q, %v", body, err)
			}
		}))(w, r)
	})
	if g.ServeHTTP(w, r); !during.IsZero() {
		t.Errorf("the answer has a deadline of the body: %v", during)
	}
}

// TestAQuestionEndsWithItsRequest verifies that the work ends with its request: nothing continues
// in the background, and the next request gets its turn.
func TestAQuestionEndsWithItsRequest(t *testing.T) {
	s, _ := serving(t)
	for name, ask := range map[string]func(context.Context, *queryserver.Answers) error{
		"a forecast": func(ctx context.Context, a *queryserver.Answers) error {
			_, err := a.WhatIf(ctx, &berthv1alpha1.WhatIfRequest{Operations: []string{"cordon", "node-1"}})
			return err
		},
		"an explanation": func(ctx context.Context, a *queryserver.Answers) error {
			_, err := a.Explain(ctx, &berthv1alpha1.ExplainRequest{Name: "web-1"})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		err := ask(ctx, &queryserver.Answers{Parse: parseFew, Read: func(ctx context.Context, q queryserver.Question, use func(*queryserver.State) error) error {
			return s.asker.read(ctx, q, func(state *queryserver.State) error {
				cancel() // the browser disconnects while the request is processed
				return use(state)
			})
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s for a browser that is gone: %v", name, err)
		}
	}
	if status, body := ask(t, s, "POST", explainPath, `{"name": "web-1"}`); status != http.StatusOK {
		t.Errorf("the next one: %d %s", status, body)
	}
}

func TestQuestionsAtATimeAreBounded(t *testing.T) {
	s, _ := serving(t)
	for range mostAsked {
		s.asker.asked <- struct{}{}
	}
	if status, body := ask(t, s, "POST", whatIfPath, strings.Repeat("x", question.MostBody)); status != http.StatusServiceUnavailable || !strings.Contains(body, "too many questions") {
		t.Errorf("%d %s", status, body)
	}
	for range mostAsked {
		<-s.asker.asked
	}
	if status, _ := ask(t, s, "POST", whatIfPath, `{"operations": ["cordon", "node-1"]}`); status != http.StatusOK {
		t.Errorf("and then: %d", status)
	}
}

// TestABodyThatDoesNotArriveIsNotWaitedFor verifies that a client that announces a body without
// sending it is disconnected, on any path.
func TestABodyThatDoesNotArriveIsNotWaitedFor(t *testing.T) {
	g := &guard{token: "secret-of-24-characters", cookie: "c", patience: 50 * time.Millisecond, next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		if err == nil {
			t.Error("a body that did not arrive was read")
		}
	})}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	for _, request := range []string{
		"POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n",
		"POST /berth.v1alpha1.QueryService/WhatIf HTTP/1.1\r\nAuthorization: Bearer secret-of-24-characters\r\n",
		"GET / HTTP/1.1\r\n",
		"GET /style.css HTTP/1.1\r\n",
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, request+"Host: localhost\r\nContent-Length: 1000\r\n\r\ntoken="); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadAll(conn); err != nil {
			t.Errorf("%.12s: the connection is still open after a hundred times its patience: %v", request, err)
		}
	}
}
