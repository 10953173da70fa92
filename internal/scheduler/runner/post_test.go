// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// answers is an API server that returns the prepared responses in order, and then repeats the last
// one.
type answers struct {
	list []answer
	got  []*http.Request
	body []byte
}

type answer struct {
	code                   int
	retryAfter, kind, text string
	location               string
	err                    error
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	next := a.list[min(len(a.got), len(a.list)-1)]
	a.got = append(a.got, r)
	a.body, _ = io.ReadAll(r.Body)
	if next.err != nil {
		return nil, next.err
	}
	header := http.Header{"Content-Type": {next.kind}}
	if next.retryAfter != "" {
		header.Set("Retry-After", next.retryAfter)
	}
	if next.location != "" {
		header.Set("Location", next.location)
	}
	return &http.Response{StatusCode: next.code, Header: header, Request: r, Body: io.NopCloser(strings.NewReader(next.text))}, nil
}

func (a *answers) poster(t *testing.T, host, contentType string) *poster {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: host, Transport: a, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPoster(client, client, contentType, "")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func aBinding() *v1.Binding {
	return &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Target: v1.ObjectReference{Kind: "Node", Name: "n1"}}
}

func TestABindingIsWhatClientGoWouldSend(t *testing.T) {
	for _, contentType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON, ""} {
		a := &answers{list: []answer{{code: http.StatusCreated}}}
		if err := a.poster(t, "http://fake/behind/a/proxy", contentType).postBinding(t.Context(), aBinding()); err != nil {
			t.Fatal(err)
		}
		r := a.got[0]
		if r.Method != http.MethodPost || r.URL.String() != "http://fake/behind/a/proxy/api/v1/namespaces/shop/pods/web/binding" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		if want := contentType; want != "" && r.Header.Get("Content-Type") != want {
			t.Errorf("content type %s, want %s", r.Header.Get("Content-Type"), want)
		}
		sent, _, err := scheme.Codecs.UniversalDeserializer().Decode(a.body, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := sent.(*v1.Binding); !ok || b.Target.Name != "n1" {
			t.Errorf("sent %v", sent)
		}
	}
}

func TestRefusalsAreTheAPIServersOwn(t *testing.T) {
	status := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "web", errors.New("already assigned")).Status()
	encoded := func(contentType string) string {
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
		text, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, v1.SchemeGroupVersion), &status)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, c := range []struct {
		name string
		answer
		is func(error) bool
	}{
		{"protobuf", answer{code: 409, kind: runtime.ContentTypeProtobuf, text: encoded(runtime.ContentTypeProtobuf)}, apierrors.IsConflict},
		{"JSON", answer{code: 409, kind: runtime.ContentTypeJSON, text: encoded(runtime.ContentTypeJSON)}, apierrors.IsConflict},
		{"a proxy's page", answer{code: 503, kind: "text/html", text: "<h1>away</h1>"}, apierrors.IsServiceUnavailable},
		{"nothing", answer{code: 404}, apierrors.IsNotFound},
		{"too many, for now", answer{code: 429}, apierrors.IsTooManyRequests},
		{"no connection", answer{err: io.ErrUnexpectedEOF}, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) && !isAnswered(err) }},
	} {
		a := &answers{list: []answer{c.answer}}
		if err := a.poster(t, "http://fake", "").postBinding(t.Context(), aBinding()); !c.is(err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(a.got) != 1 {
			t.Errorf("%s: sent %d times", c.name, len(a.got))
		}
	}
}

// TestComesBackWhenTold verifies that requests are repeated after the time in Retry-After.
func TestComesBackWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{list: []answer{{code: 429, retryAfter: "2"}, {code: 503, retryAfter: "1"}, {code: 201}}}
		began := time.Now()
		if err := a.poster(t, "http://fake", "").postBinding(t.Context(), aBinding()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); len(a.got) != 3 || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("sent %d times within %v", len(a.got), took)
		}
		a = &answers{list: []answer{{code: 429, retryAfter: "1"}}}
		if err := a.poster(t, "http://fake", "").postBinding(t.Context(), aBinding()); !apierrors.IsTooManyRequests(err) || len(a.got) != mostTries {
			t.Errorf("sent %d times: %v", len(a.got), err)
		}
		short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		a = &answers{list: []answer{{code: 429, retryAfter: "1"}}}
		if err := a.poster(t, "http://fake", "").postBinding(short, aBinding()); !apierrors.IsTooManyRequests(err) || len(a.got) != 2 {
			t.Errorf("sent %d times within 1.5 s: %v", len(a.got), err)
		}
	})
}

// TestAPostFollowsARedirect verifies that a redirect by a proxy is followed.
func TestAPostFollowsARedirect(t *testing.T) {
	a := &answers{list: []answer{{code: http.StatusTemporaryRedirect, location: "http://other/"}, {code: http.StatusTemporaryRedirect, location: "http://other/"}, {code: 201}}}
	if err := a.poster(t, "http://fake", "").postBinding(t.Context(), aBinding()); err != nil {
		t.Fatal(err)
	}
	if last := a.got[len(a.got)-1]; last.URL.Host != "other" || len(a.body) == 0 {
		t.Errorf("sent %d bytes to %s at last", len(a.body), last.URL)
	}
}

// TestBindingsAreTheSchedulersOwn verifies that bindings use the connections of the event client,
// but have a user agent of their own in audit logs.
func TestBindingsAreTheSchedulersOwn(t *testing.T) {
	a := &answers{list: []answer{{code: http.StatusCreated}}}
	through := func(agent string) kubernetes.Interface {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://fake", Transport: a, QPS: -1, UserAgent: agent})
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	s, err := New(through("berth/scheduler"), through("berth/scheduler-events"), Options{
		Profiles: []cycle.Profile{{Profile: plugins.Default()}}, UserAgent: "berth/scheduler",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.binding.post(t.Context(), aBinding()); err != nil {
		t.Fatal(err)
	}
	if err := s.events.Create(t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"berth/scheduler", "berth/scheduler-events"} {
		if got := a.got[i].UserAgent(); got != want {
			t.Errorf("%s: the agent is %s, want %s", a.got[i].URL.Path, got, want)
		}
	}
}
