// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
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
	var body strings.Builder
	fmt.Fprintf(&body, `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": %q}, "items": [`, next)
	for i, size := range s.sizes[first:last] {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"metadata": {"name": "%d", "annotations": {"a": "`, first+i)
		for range size >> 10 {
			body.WriteString(kibibyte)
		}
		body.WriteString(`"}}}`)
	}
	body.WriteString("]}")

	text := body.String()
	w.Header().Set("Content-Type", "application/json")
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
	s := &shelf{sizes: sizes}
	server := httptest.NewServer(s)
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, DisableCompression: true, QPS: -1})
	source := Of(client.CoreV1().RESTClient(), "", "pods", func() runtime.Object { return &v1.PodList{} })

	seen := 0
	version, begun, err := Pages(t.Context(), metav1.ListOptions{Limit: pageSize}, source.List, func(o runtime.Object) {
		if name := o.(*v1.Pod).Name; name != fmt.Sprint(seen) {
			t.Fatalf("saw %s in place of %d", name, seen)
		}
		seen++
	})
	if err != nil || seen != len(sizes) || version != "7" || !begun {
		t.Fatalf("saw %d of %d, version %q: %v", seen, len(sizes), version, err)
	}

	const onTheWay = 12 << 20 // upper bound of data in socket buffers
	above := 0
	for _, taken := range s.taken {
		if taken > mostOfPage+onTheWay {
			above++
		}
	}
	if above != 1 {
		t.Errorf("%d answers were read beyond the bound, want that of one object alone: %v", above, s.taken)
	}
	if requests := len(s.taken); requests > 60 {
		t.Errorf("%d requests for %d objects", requests, len(sizes))
	}
}

// TestAListWithoutPagesIsReadToItsEnd verifies that the size of a list without pages is not
// bounded, because it cannot be requested in smaller parts.
func TestAListWithoutPagesIsReadToItsEnd(t *testing.T) {
	server := httptest.NewServer(&shelf{sizes: []int{mostOfPage, mostOfPage}})
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	list := &v1.PodList{}
	request := client.CoreV1().RESTClient().Get().Resource("pods")
	if err := ReadInto(t.Context(), request, 0, list, true, new(bytes.Buffer)); err != nil || len(list.Items) != 2 {
		t.Errorf("%d pods: %v", len(list.Items), err)
	}
}
