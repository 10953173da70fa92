// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/maphash"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// encode encodes an object in the protobuf format, by the code of the API server.
func encode(t *testing.T, o runtime.Object) []byte {
	t.Helper()
	text, err := runtime.Encode(scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), v1.SchemeGroupVersion), o)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func node(name, version string, beat time.Time, labels map[string]string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: version, Labels: labels,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(version)}},
		},
		Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(beat)}}},
	}
}

// protobufServer serves a list of nodes, and in turn the events of each watch.
type protobufServer struct {
	t       *testing.T
	list    *v1.NodeList
	watches [][]watch.Event
	mu      sync.Mutex
}

func (s *protobufServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	if r.URL.Query().Get("watch") == "" {
		_, _ = w.Write(encode(s.t, s.list))
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	if len(s.watches) == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	for _, e := range s.watches[0] {
		event := metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: encode(s.t, e.Object)}}
		frame, err := event.Marshal()
		if err != nil {
			s.t.Error(err)
		}
		_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	}
	s.watches = s.watches[1:]
}

// shownBy runs the source until the server has no more watches, and returns what the sink was
// shown.
func shownBy(t *testing.T, s *protobufServer, source func(rest.Interface) Source) (shown []*v1.Node) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	Run(ctx, source(client.CoreV1().RESTClient()), Sink{
		Listing: func() {}, Listed: func() {}, Gone: func(o runtime.Object) { shown = append(shown, o.(*v1.Node)) },
		Seen: func(o runtime.Object) { shown = append(shown, o.(*v1.Node)) },
		Lost: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.watches) == 0 {
				cancel()
			}
		},
	})
	return shown
}

func versions(nodes []*v1.Node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.ResourceVersion)
	}
	return all
}

func newNodes() runtime.Object { return &v1.NodeList{} }

// TestUnusedFieldsAreSkipped verifies that Without drops managed fields from lists and
// watches in the protobuf format, and decodes all other fields, and that Of keeps them.
func TestUnusedFieldsAreSkipped(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	labels := map[string]string{"zone": "a"}
	for _, keeps := range []bool{false, true} {
		s := &protobufServer{
			t: t, list: &v1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Node{*node("a", "5", now, labels)}},
			watches: [][]watch.Event{{{Type: watch.Modified, Object: node("a", "8", now, labels)}}},
		}
		shown := shownBy(t, s, func(client rest.Interface) Source {
			if keeps {
				return Of(client, "", "nodes", newNodes)
			}
			return Without(ManagedFields, client, "", "nodes", newNodes)
		})
		if !slices.Equal(versions(shown), []string{"5", "8"}) {
			t.Fatalf("shown versions %v", versions(shown))
		}
		for _, n := range shown {
			if n.Name != "a" || n.Labels["zone"] != "a" || len(n.Status.Conditions) != 1 || !n.Status.Conditions[0].LastHeartbeatTime.Time.Equal(now) {
				t.Errorf("decoded as %+v", n)
			}
			if (n.ManagedFields != nil) != keeps {
				t.Errorf("managed fields: %+v, want them to be kept: %t", n.ManagedFields, keeps)
			}
		}
	}
}

// TestHeartbeatsAreNotShown verifies that a watch shows every change of a node since the list,
// except for heartbeats, and that an event counts as shown only if it was.
func TestHeartbeatsAreNotShown(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1_800_000_000+int64(seconds), 0) }
	change := func(kind watch.EventType, version string, seconds int, labels map[string]string) watch.Event {
		return watch.Event{Type: kind, Object: node("a", version, at(seconds), labels)}
	}
	old, changed := map[string]string{"zone": "a"}, map[string]string{"zone": "b"}
	events := []watch.Event{
		change(watch.Modified, "8", 1, old), // the list has shown this state
		change(watch.Modified, "9", 2, old),
		change(watch.Modified, "10", 3, changed),
		change(watch.Modified, "11", 4, changed),
		change(watch.Modified, "12", 5, old),
		change(watch.Deleted, "13", 5, old),
		change(watch.Added, "14", 6, old),
		change(watch.Modified, "15", 7, old),
		change(watch.Modified, "16", 8, old),
	}
	list := &v1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Node{*node("a", "5", at(0), old)}}
	s := &protobufServer{t: t, list: list, watches: [][]watch.Event{events}}
	shown := versions(shownBy(t, s, WithoutHeartbeats))
	if want := []string{"5", "10", "12", "13", "14", "15"}; !slices.Equal(shown, want) {
		t.Errorf("shown %v, not %v", shown, want)
	}

	// An event decoded but not received is shown again by the next watch.
	h := &heartbeats{seed: maphash.MakeSeed(), known: map[uint64]uint64{}}
	event := &metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: encode(t, node("a", "8", at(1), old))}}
	for range 2 {
		h.next = [2]uint64{} // as at the start of a watch
		if h.isNext(event) {
			t.Error("an event that was not processed is not shown again")
		}
	}
	if !h.isNext(event) {
		t.Error("an event that was processed is shown again")
	}
}

// TestObjectsAreDecodedLikeInClientGo verifies that objects, lists, and truncated and longer texts
// are decoded like by client-go, also into an object of this or another type.
func TestObjectsAreDecodedLikeInClientGo(t *testing.T) {
	n := node("a", "8", time.Unix(1_800_000_000, 0), map[string]string{"zone": "a"})
	list, pod := &v1.NodeList{Items: []v1.Node{*n, *n}}, &v1.Pod{Spec: v1.PodSpec{NodeName: "a"}}
	for _, object := range []runtime.Object{n, list, &metav1.Status{Message: "m"}, pod} {
		text := append(encode(t, object), 0xff)
		for size := range len(text) + 1 {
			for _, into := range []runtime.Object{nil, &v1.Node{Spec: v1.NodeSpec{PodCIDR: "old"}}, &v1.NodeList{}} {
				other, ours := into, into
				if into != nil {
					other, ours = into.DeepCopyObject(), into.DeepCopyObject()
				}
				want, _, failure := scheme.Codecs.UniversalDeserializer().Decode(text[:size], nil, other)
				got, err := decode(slices.Clone(text[:size]), nil, ours)
				if (err == nil) != (failure == nil) || err == nil && !equality.Semantic.DeepEqual(got, want) {
					t.Fatalf("the first %d of %d bytes into %T: %v, %v, but client-go: %v, %v", size, len(text), into, got, err, want, failure)
				}
			}
		}
	}
}

// TestPagesAreReadWithoutManagedFields verifies that the managed fields of a page are not
// decoded, and that reusing the buffer does not change objects that were read before.
func TestPagesAreReadWithoutManagedFields(t *testing.T) {
	list := &v1.NodeList{Items: []v1.Node{*node("a", "1", time.Time{}, map[string]string{"k": "v"}), *node("b", "2", time.Time{}, nil)}}
	server := httptest.NewServer(&protobufServer{t: t, list: list})
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	var text bytes.Buffer
	var read [2]v1.NodeList
	for i, unused := range []Fields{ManagedFields, nil} {
		if err := readInto(t.Context(), client.CoreV1().RESTClient().Get().Resource("nodes"), 1, &read[i], unused, &text); err != nil {
			t.Fatal(err)
		}
	}
	for i := range list.Items {
		if kept := read[1].Items[i].ManagedFields; len(kept) != 1 {
			t.Errorf("with managed fields: %v", kept)
		}
		list.Items[i].ManagedFields = nil
	}
	if !equality.Semantic.DeepEqual(read[0].Items, list.Items) {
		t.Errorf("without managed fields: %+v, want %+v", read[0].Items, list.Items)
	}
}

// readSizes records the size of each read of a response body. It implements [http.RoundTripper].
type readSizes struct {
	http.RoundTripper
	io.ReadCloser
	most int
}

func (r *readSizes) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		r.ReadCloser, response.Body = response.Body, r
	}
	return response, err
}

func (r *readSizes) Read(p []byte) (int, error) {
	r.most = max(r.most, len(p))
	return r.ReadCloser.Read(p)
}

// TestWatchesAreReadAhead verifies that a watch reads as much as it has received, rather than event
// by event.
func TestWatchesAreReadAhead(t *testing.T) {
	server := httptest.NewServer(&protobufServer{t: t, watches: [][]watch.Event{{{Type: watch.Added, Object: node("n", "1", time.Time{}, nil)}}}})
	defer server.Close()
	reads := &readSizes{RoundTripper: http.DefaultTransport}
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, Transport: reads})
	w, err := Without(ManagedFields, client.CoreV1().RESTClient(), "", "nodes", newNodes).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if <-w.ResultChan(); reads.most < readAhead {
		t.Errorf("reads of at most %d bytes, want %d", reads.most, readAhead)
	}
}
