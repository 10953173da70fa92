// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"hash/maphash"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// fieldSet is a set of fields of a protobuf message, by number. The value is the set of fields of
// the nested message, or nil for the field as a whole.
type fieldSet map[protowire.Number]fieldSet

// These fields have the same numbers in all kinds: metadata in an object, its name,
// resourceVersion and managedFields, and the items of a list.
const metadataField, nameField, versionField, managedField, itemsField = 1, 1, 6, 17, 2

var (
	// unused are the fields of an object that no component reads, and unusedInList those of a list.
	// They may be more than half of an object.
	unused       = fieldSet{metadataField: {managedField: nil}}
	unusedInList = fieldSet{itemsField: unused}
	// heartbeat are the fields of a node that change with each heartbeat. In its status, field 4
	// has the conditions, and field 3 of a condition is lastHeartbeatTime.
	heartbeat = fieldSet{metadataField: {versionField: nil, managedField: nil}, 3: {4: {3: nil}}}
)

// walk calls in for the encoding of each field in the set, and out for each other field. It stops
// at a malformed field, and returns false.
func (s fieldSet) walk(message []byte, in, out func(field []byte)) bool {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return false
		}
		field := message[:tag+size]
		switch nested, has := s[number]; {
		case !has:
			out(field)
		case nested == nil:
			in(field)
		default:
			content, _ := protowire.ConsumeBytes(field[tag:])
			if !nested.walk(content, in, out) {
				return false
			}
		}
		message = message[tag+size:]
	}
	return true
}

// hide makes the decoder skip the fields, without copying the message: it replaces their numbers,
// of two bytes when encoded, by a number that no message of the API has.
func (s fieldSet) hide(message []byte) {
	tag := protowire.AppendTag(nil, 2047, protowire.BytesType)
	_ = s.walk(message, func(field []byte) { copy(field, tag) }, func([]byte) {})
}

// field returns the content of a field of a message, or nil if the message lacks the field or is
// malformed.
func field(message []byte, number protowire.Number) (content []byte) {
	found := func(field []byte) {
		_, _, tag := protowire.ConsumeTag(field)
		content, _ = protowire.ConsumeBytes(field[tag:])
	}
	if !(fieldSet{number: nil}).walk(message, found, func([]byte) {}) {
		return nil
	}
	return content
}

// envelope returns the runtime.Unknown that contains an object in the protobuf format.
func envelope(text []byte) ([]byte, bool) { return bytes.CutPrefix(text, []byte("k8s\x00")) }

// decode decodes an object or a list into the given object. The text may be modified, but is not
// kept. Unlike the decoders of client-go, decode does not copy the text, and skips unused fields.
func decode(text []byte, into runtime.Object, unused fieldSet) error {
	if unknown, is := envelope(text); is {
		// The general decoder reports a malformed envelope.
		if message, ok := into.(interface{ Unmarshal([]byte) error }); ok {
			if content := field(unknown, 2); content != nil {
				unused.hide(content)
				return message.Unmarshal(content)
			}
		}
	}
	_, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, into)
	return err
}

// decodeAny decodes an object of any kind of the API.
func decodeAny(text []byte) (runtime.Object, error) {
	if unknown, is := envelope(text); is {
		kind := field(unknown, 1)
		object, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(string(field(kind, 1)), string(field(kind, 2))))
		if err != nil {
			return nil, err
		}
		return object, decode(text, object, unused)
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	return object, err
}

// heartbeats recognizes changes of nodes that are only heartbeats.
type heartbeats struct {
	seed  maphash.Seed
	known map[uint64]uint64 // digest of each node without the heartbeat, by the hash of its name
	next  [2]uint64         // key and digest of the last event
	has   bool              // whether next is set
}

func newHeartbeats() *heartbeats {
	return &heartbeats{seed: maphash.MakeSeed(), known: map[uint64]uint64{}}
}

// unchanged reports whether an event shows the state of the previous event of the node, except for
// the heartbeat.
//
// The previous event counts only if it was processed: it counts as processed at the next call,
// because an event is requested only after the previous one was received.
func (h *heartbeats) unchanged(event string, text []byte) bool {
	if h.has {
		h.known[h.next[0]], h.has = h.next[1], false
	}
	unknown, is := envelope(text)
	if !is {
		return false
	}
	node := field(unknown, 2)
	key := maphash.Bytes(h.seed, field(field(node, metadataField), nameField))
	if event != "MODIFIED" {
		delete(h.known, key)
		return false
	}
	var hash maphash.Hash
	hash.SetSeed(h.seed)
	_ = heartbeat.walk(node, func([]byte) {}, func(field []byte) { _, _ = hash.Write(field) })
	h.next, h.has = [2]uint64{key, hash.Sum64()}, true
	return h.known[key] == h.next[1]
}
