// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"hash/maphash"
	"io"
	"net/http"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Source lists and watches one kind of object.
type Source struct {
	Name     string // name of the resource, such as "pods"
	Selector string // field selector
	List     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Anew, if set, makes the feed list again when it is closed. Unlike a list, a watch may lag
	// because of the API server or the network. If a list begins after Anew is closed, no other
	// list is needed; see Sink.Fresh.
	Anew <-chan struct{}
}

// Of returns a source for a resource in a namespace, or in all namespaces if namespace is empty.
// client is the client of the API group. client-go's own retries are disabled, because the feed
// paces its requests.
func Of(client rest.Interface, namespace, resource string, newList func() runtime.Object) Source {
	return newSource(client, namespace, resource, newList, nil, nil)
}

// Without is like Of, but drops unused fields of objects in the protobuf format, for example the
// managed fields, which are a large part of most objects.
func Without(unused Fields, client rest.Interface, namespace, resource string, newList func() runtime.Object) Source {
	return newSource(client, namespace, resource, newList, unused, nil)
}

// WithoutHeartbeats returns a source for nodes without managed fields, whose watch shows no change
// if only the heartbeat of a node has changed. Kubelets update the status of every node at least
// every five minutes.
func WithoutHeartbeats(client rest.Interface) Source {
	return newSource(client, metav1.NamespaceAll, "nodes", func() runtime.Object { return &v1.NodeList{} }, ManagedFields,
		&heartbeats{seed: maphash.MakeSeed()})
}

func newSource(client rest.Interface, namespace, resource string, newList func() runtime.Object, unused Fields, h *heartbeats) Source {
	get := func(o *metav1.ListOptions) *rest.Request {
		return client.Get().Namespace(namespace).Resource(resource).VersionedParams(o, metav1.ParameterCodec).MaxRetries(0)
	}
	var text bytes.Buffer
	return Source{
		Name: resource,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if h != nil && o.Continue == "" {
				h.known = map[uint64]uint64{} // the list may show nodes in other states
			}

			list := newList()
			err := readInto(ctx, get(&o), o.Limit, list, unused, &text)
			if err == nil && h != nil { // the nodes are passed on before a watch begins
				h.eachNode(text.Bytes(), Fields{2: {2: nil}}, func(key, digest uint64) { h.known[key] = digest })
			}
			if page, is := list.(metav1.ListInterface); err != nil || !is || page.GetContinue() == "" {
				text = bytes.Buffer{} // the last page
			}
			return list, err
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			if h != nil {
				h.next = [2]uint64{} // it is unknown whether the last event of the previous watch was processed
			}
			return openWatch(ctx, get(&o), unused, h)
		},
	}
}

// Fields is a set of fields of a protobuf message, by number. The value is the set of fields of the
// nested message, or nil for the field as a whole.
type Fields map[protowire.Number]Fields

// These sets begin at the envelope of an object, a runtime.Unknown, whose field 2 is the object, or
// at a list, whose field 2 holds the items. Field 1 of an object is its metadata, with the name in
// field 1, resourceVersion in 6 and managedFields in 17.
var (
	ManagedFields = Fields{2: {1: {17: nil}}}
	// Field 3 of a node is its status, field 4 of that the conditions, and field 3 of a condition
	// lastHeartbeatTime.
	heartbeatFields = Fields{2: {1: {6: nil, 17: nil, skipped: nil}, 3: {4: {3: nil}}}}
)

// walk calls visit for the encoding of each field in the set, with in true, and for all other
// fields. It stops at a malformed field, which the decoder reports.
func (s Fields) walk(message []byte, visit func(field []byte, in bool)) {
	for len(message) > 0 {
		number, _, size := protowire.ConsumeField(message)
		if size < 0 {
			return
		}
		if nested, in := s[number]; nested == nil {
			visit(message[:size], in)
		} else {
			_, _, tag := protowire.ConsumeTag(message)
			content, _ := protowire.ConsumeBytes(message[tag:size])
			nested.walk(content, visit)
		}
		message = message[size:]
	}
}

// walkObject is like walk for an object in the protobuf format, after its magic number. It does
// nothing for an object in JSON.
func (s Fields) walkObject(text []byte, visit func(field []byte, in bool)) {
	if envelope, is := bytes.CutPrefix(text, magic); is {
		s.walk(envelope, visit)
	}
}

// skipped is a field number that no message has. It is encoded as fa 7f, with the type of strings,
// lists and messages. It replaces numbers of two bytes. A number of one byte is replaced by 15,
// which no message with such an unused field has.
const skipped = 2047

// decode decodes an object or a list without the unused fields, into the given object if it is not
// nil. The text is modified: the decoder skips the unused fields, because their numbers are
// replaced.
func decode(text []byte, unused Fields, into runtime.Object) (runtime.Object, error) {
	unused.walkObject(text, func(field []byte, in bool) {
		switch {
		case in && field[0] < 1<<7:
			field[0] = 0x7a
		case in:
			copy(field, "\xfa\x7f")
		}
	})
	if object, err, ok := decodeInPlace(text, into); ok {
		return object, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, into)
	return object, err
}

// decodeInPlace is like the deserializer of the scheme, but does not copy the encoded object, which
// may be a whole page. It returns false for texts in JSON, and for malformed envelopes.
func decodeInPlace(text []byte, into runtime.Object) (object runtime.Object, err error, ok bool) {
	envelope, is := bytes.CutPrefix(text, magic)
	var kind runtime.TypeMeta
	var content []byte
	walked := 0
	Fields{}.walk(envelope, func(field []byte, _ bool) {
		walked += len(field)
		number, _, tag := protowire.ConsumeTag(field)
		switch value, _ := protowire.ConsumeBytes(field[tag:]); number {
		case 1:
			err = kind.Unmarshal(value)
		case 2:
			content = value
		}
	})
	if !is || walked < len(envelope) || err != nil || kind.Kind == "" || kind.APIVersion == "" {
		return nil, nil, false
	}

	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	if object, err = runtime.UseOrCreateObject(scheme.Scheme, scheme.Scheme, gvk, into); err != nil {
		return nil, err, true
	}
	message, is := object.(interface {
		Reset()
		Unmarshal(text []byte) error
	})
	if !is {
		return nil, nil, false
	}
	message.Reset()
	if err := message.Unmarshal(content); err != nil {
		return nil, err, true
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	return object, nil, true
}

// magic is the beginning of an object in the protobuf format.
var magic = []byte("k8s\x00")

// heartbeats recognizes changes of nodes that are only heartbeats, by digests of the nodes.
type heartbeats struct {
	seed  maphash.Seed
	known map[uint64]uint64 // digest of each node without the heartbeat, by the hash of its name
	next  [2]uint64         // key and digest of the last event
}

// eachNode calls see for each node of a text, with the hash of its name, and the digest of the node
// without the heartbeat. nodes is the set of fields with nodes, which all have the number 2. The
// name is the first field in each encoding by Kubernetes.
func (h *heartbeats) eachNode(text []byte, nodes Fields, see func(key, digest uint64)) {
	nodes.walkObject(text, func(node []byte, in bool) {
		if !in {
			return
		}
		key, hash := uint64(0), maphash.Hash{}
		hash.SetSeed(h.seed)
		heartbeatFields.walk(node, func(field []byte, in bool) {
			if key == 0 {
				key = maphash.Bytes(h.seed, field)
			}
			if !in {
				_, _ = hash.Write(field)
			}
		})
		see(key, hash.Sum64())
	})
}

// isNext reports whether the event shows the state of the previous event of the node, or its state
// in the list, except for the heartbeat. The previous event of the watch is known to have been
// processed, because the watch decodes an event only after the previous one was received.
func (h *heartbeats) isNext(event *metav1.WatchEvent) bool {
	h.known[h.next[0]], h.next = h.next[1], [2]uint64{}
	h.eachNode(event.Object.Raw, Fields{2: nil}, func(key, digest uint64) { h.next = [2]uint64{key, digest} })
	key, digest := h.next[0], h.next[1]
	if event.Type != string(watch.Modified) || key == 0 {
		delete(h.known, key)
		h.next = [2]uint64{}
		return false
	}
	return h.known[key] == digest
}

// stream decodes the events of a watch. It implements [watch.Decoder].
type stream struct {
	io.Closer
	body       *bufio.Reader
	json       *json.Decoder // set if the events are in JSON
	frame      []byte        // an encoded event; reused
	unused     Fields        // dropped from the objects
	event      metav1.WatchEvent
	heartbeats *heartbeats // nil: heartbeats are passed on
}

// readAhead is the size of the buffer of a watch. With HTTP/2, each read of the response sends a
// window update, so small reads of a busy watch cost more than its events.
const readAhead = 64 << 10

// openWatch opens a watch whose events are decoded by decode. If h is not nil, heartbeats of nodes
// are dropped.
func openWatch(ctx context.Context, request *rest.Request, unused Fields, h *heartbeats) (watch.Interface, error) {
	body, err := request.Throttle(nil).Stream(ctx) // like client-go's watches
	if err != nil {
		return nil, err
	}
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")
	s := &stream{Closer: body, body: bufio.NewReaderSize(body, readAhead), unused: unused, heartbeats: h}
	return watch.NewStreamWatcher(s, reporter), nil
}

// Close implements [watch.Decoder].
func (s *stream) Close() { _ = s.Closer.Close() }

// Decode implements [watch.Decoder].
func (s *stream) Decode() (watch.EventType, runtime.Object, error) {
	err := s.readEvent()
	for err == nil && s.heartbeats != nil && s.heartbeats.isNext(&s.event) {
		err = s.readEvent()
	}
	if err != nil {
		return "", nil, err
	}
	object, err := decode(s.event.Object.Raw, s.unused, nil)
	return watch.EventType(s.event.Type), object, err
}

// readEvent reads the next event. In the protobuf format, the length of an event precedes it, in
// four bytes of which the first is 0.
func (s *stream) readEvent() error {
	if s.frame == nil {
		s.frame = make([]byte, 4)
		if first, err := s.body.Peek(1); err == nil && first[0] != 0 {
			s.json = json.NewDecoder(s.body)
		}
	}
	if s.json != nil {
		return s.json.Decode(&s.event)
	}

	if _, err := io.ReadFull(s.body, s.frame[:4]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(s.frame[:4])
	if size > mostOfPage {
		return errUnreadable
	}
	s.frame = slices.Grow(s.frame[:0], int(size))[:size]
	if _, err := io.ReadFull(s.body, s.frame); err != nil {
		return err
	}
	return s.event.Unmarshal(s.frame)
}
