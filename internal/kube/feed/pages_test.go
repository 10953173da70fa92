// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

var kibibyte = strings.Repeat("x", 1<<10)

// shelf serves pods of given sizes in pages, and records the number of bytes written of each
// response.
type shelf struct {
	sizes []int

	mu    sync.Mutex
	taken []int // number of bytes by request
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	first, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	last, next := len(s.sizes), ""
	if limit > 0 && first+limit < last {
		last = first + limit
		next = strconv.Itoa(last)
	}
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	list.ResourceVersion, list.Continue = "7", next
	for i, size := range s.sizes[first:last] {
		pod := v1.Pod{}
		pod.Name = strconv.Itoa(first + i)
		pod.Annotations = map[string]string{"a": strings.Repeat(kibibyte, size>>10)}
		list.Items = append(list.Items, pod)
	}
	accepted := strings.Split(r.Header.Get("Accept"), ",")[0]
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), accepted)
	encoded, err := runtime.Encode(info.Serializer, &list)
	if err != nil {
		panic(err)
	}

	text := string(encoded)
	w.Header().Set("Content-Type", accepted)
	s.mu.Lock()
	at := len(s.taken)
	s.taken = append(s.taken, 0)
	s.mu.Unlock()
	for len(text) > 0 {
		n, err := io.WriteString(w, text[:min(len(text), 1<<16)])
		s.mu.Lock()
		s.taken[at] += n
		s.mu.Unlock()
		if err != nil {
			return
		}
		text = text[n:]
	}
}

// listers returns functions that read a list of pods in the given format.
func listers(url, format string) map[string]Asking {
	client := newClient(&rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: format}})
	newList := func() runtime.Object { return &v1.PodList{} }
	return map[string]Asking{"Of": Of(client, "", "pods", newList).List, "Ahead": Ahead(podsOf(client), nil, newList)}
}

func newClient(config *rest.Config) rest.Interface {
	config.DisableCompression, config.QPS = true, -1
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(1 << 20) // by default it grows to many megabytes on some machines
		}
		return conn, err
	}
	return kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
}

func podsOf(client rest.Interface) func(metav1.ListOptions) *rest.Request {
	return func(o metav1.ListOptions) *rest.Request {
		return client.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec)
	}
}

// TestPagesAreBounded verifies that if there are large objects among small ones, every object is
// seen once, no response with several objects is read beyond the bound, and small objects are
// requested in large pages again.
func TestPagesAreBounded(t *testing.T) {
	const large = 1_500_000
	sizes := make([]int, 2500)
	for i := 600; i < 615; i++ {
		sizes[i] = large
	}
	sizes[1200] = mostOfPage + 13<<20 // exceeds mostOfPage, so it needs a page of one object
	for _, format := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		for _, name := range []string{"Of", "Ahead"} {
			s := &shelf{sizes: sizes}
			server := httptest.NewServer(s)
			defer server.Close()
			ask := listers(server.URL, format)[name]
			seen := 0
			version, begun, err := Pages(t.Context(), metav1.ListOptions{Limit: pageSize}, ask, func(o runtime.Object) {
				if name := o.(*v1.Pod).Name; name != fmt.Sprint(seen) {
					t.Fatalf("saw %s in place of %d", name, seen)
				}
				seen++
			})
			if err != nil || seen != len(sizes) || version != "7" || !begun {
				t.Fatalf("%s, %s: saw %d of %d, version %q: %v", name, format, seen, len(sizes), version, err)
			}

			const onTheWay = 12 << 20 // upper bound of data in socket buffers
			above := 0
			s.mu.Lock()
			for _, taken := range s.taken {
				if taken > mostOfPage+onTheWay {
					above++
				}
			}
			if above != 1 {
				t.Errorf("%s, %s: %d answers were read beyond the bound, want that of one object alone: %v", name, format, above, s.taken)
			}
			if requests := len(s.taken); requests > 60 {
				t.Errorf("%s, %s: %d requests for %d objects", name, format, requests, len(sizes))
			}
			s.mu.Unlock()
		}
	}
}

// closes reports when a response has been read. It implements [http.RoundTripper].
type closes struct {
	http.RoundTripper
	io.ReadCloser
	closed chan bool
}

func (c closes) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(request)
	if err == nil {
		c.ReadCloser, response.Body = response.Body, &c
	}
	return response, err
}

func (c closes) Close() error {
	c.closed <- true
	return c.ReadCloser.Close()
}

// TestPagesAreReadAhead verifies that a page can be read before the previous one is decoded, and
// that the request ends with the context if the list is abandoned.
func TestPagesAreReadAhead(t *testing.T) {
	last, abandoned := make(chan bool), make(chan bool)
	s := &shelf{sizes: make([]int, 30)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("continue") == "20" {
			close(last)
			<-r.Context().Done()
			close(abandoned)
			return
		}
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	closed := make(chan bool, 10)
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}}
	config.Transport = closes{RoundTripper: http.DefaultTransport, closed: closed}
	decoded, seen := 0, 0
	ask := Ahead(podsOf(newClient(config)), nil, func() runtime.Object {
		if decoded++; decoded == 1 {
			within(t, closed)
			within(t, closed) // two pages are read, and none is decoded
		}
		return &v1.PodList{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, begun, err := Pages(ctx, metav1.ListOptions{Limit: 10}, ask, func(o runtime.Object) {
		if name := o.(*v1.Pod).Name; name != fmt.Sprint(seen) {
			t.Fatalf("saw %s in place of %d", name, seen)
		}
		if seen++; seen == 20 {
			within(t, last)
			cancel()
		}
	})
	if seen != 20 || !begun || !errors.Is(err, context.Canceled) {
		t.Errorf("saw %d pods, begun %v: %v", seen, begun, err)
	}
	within(t, abandoned)
}

// within receives from a channel, or fails the test after a minute.
func within[T any](t *testing.T, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing was received")
	}
	return got
}

// TestAListWithoutPagesIsReadToItsEnd verifies that the size of a list without pages is not
// bounded, because it cannot be requested in smaller parts.
func TestAListWithoutPagesIsReadToItsEnd(t *testing.T) {
	server := httptest.NewServer(&shelf{sizes: []int{mostOfPage, mostOfPage}})
	defer server.Close()
	for name, ask := range listers(server.URL, runtime.ContentTypeJSON) {
		list, err := ask(t.Context(), metav1.ListOptions{})
		if err != nil || meta.LenList(list) != 2 {
			t.Errorf("%s: %d pods: %v", name, meta.LenList(list), err)
		}
	}
}
