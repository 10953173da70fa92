// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// magic begins every journal. Its number grows when older builds would misread newer files. A new
// type of record does not change the number: an older build reads up to the first record of that
// type, and reports an error.
const magic = "berth-journal 1\n"

// Header holds the core's options. Every input of decisions other than events must be here, since a
// replay has no other source. The zero value of a new field must mean the behavior of older builds.
type Header struct {
	Build string    `json:"build"` // build of Berth
	Began time.Time `json:"began"`
	// Continues is the begin time of the previous file, continued by this one; zero for the first
	// file of a process.
	Continues time.Time `json:"continues,omitzero"`
	// Lost is the number of records lost before this file because the disk did not keep up.
	Lost int    `json:"lost,omitempty"`
	Seed uint64 `json:"seed"`
	// Configuration is the KubeSchedulerConfiguration in effect. The fields below hold the
	// additions by flags.
	Configuration string `json:"configuration"`
	config.Added
	Disabled     cycle.Disabled `json:"disabled,omitzero"` // features disabled by feature gates
	FirstBackoff time.Duration  `json:"firstBackoff,omitempty"`
	LastBackoff  time.Duration  `json:"lastBackoff,omitempty"`
	MaxWait      time.Duration  `json:"maxWait,omitempty"`
	Shadow       bool           `json:"shadow,omitempty"`
	Groups       groups.Gates   `json:"groups,omitzero"`
	// ResizePreemption: see [cycle.Options].
	ResizePreemption bool `json:"resizePreemption,omitempty"`
	SearchLimit      int  `json:"searchLimit,omitempty"`
	// PrepareAside: see [cycle.Options].
	PrepareAside bool `json:"prepareAside,omitempty"`
	// Outside means that out-of-tree plugins or extenders take part. Their results are not
	// recorded.
	Outside bool `json:"outside,omitempty"`
}

// Record is an event with the resulting actions, as returned by one Step for the event.
type Record struct {
	At      time.Time
	Event   cycle.Event
	Actions string // one per line
}

// Types of records.
const (
	// A letter must keep its meaning, because files of older builds must stay readable.
	typeFollows        = 'F'
	typeListing        = 'L'
	typeListed         = 'l'
	typeSeen           = 'S'
	typeGone           = 'G'
	typeRead           = 'R'
	typeLed            = 'A'
	typeWallSet        = 'K'
	typeConfigured     = 'C'
	typeTick           = 'T'
	typeActivate       = 'W'
	typePermitAllowed  = 'P'
	typePermitRejected = 'p'
	typeClaimMade      = 'M'
	typeAnswered       = 'a'
	typeResumed        = 'Q'
	typeHappened       = 'H'
)

// happened is the written form of a [cycle.Happened]. It omits the custom resource itself, which
// may contain anything. Only hints of out-of-tree plugins look at the custom resource, and the
// results of these hints are not recorded either.
type happened struct {
	Resource queue.Resource
	Action   queue.Action
	Label    string
}

// object is implemented by all recorded API types, which marshal themselves as protobuf. JSON would
// be several times as large and as slow.
type object interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// made holds a constructor of empty objects for each kind. The keys are the kinds that a core
// watches; other kinds cannot be recorded.
var made = map[cycle.Kind]func() object{
	cycle.Nodes:                  func() object { return &v1.Node{} },
	cycle.Pods:                   func() object { return &v1.Pod{} },
	cycle.Namespaces:             func() object { return &v1.Namespace{} },
	cycle.Services:               func() object { return &v1.Service{} },
	cycle.ReplicationControllers: func() object { return &v1.ReplicationController{} },
	cycle.ReplicaSets:            func() object { return &appsv1.ReplicaSet{} },
	cycle.StatefulSets:           func() object { return &appsv1.StatefulSet{} },
	cycle.DisruptionBudgets:      func() object { return &policyv1.PodDisruptionBudget{} },
	cycle.Volumes:                func() object { return &v1.PersistentVolume{} },
	cycle.Claims:                 func() object { return &v1.PersistentVolumeClaim{} },
	cycle.StorageClasses:         func() object { return &storagev1.StorageClass{} },
	cycle.CSINodes:               func() object { return &storagev1.CSINode{} },
	cycle.CSIDrivers:             func() object { return &storagev1.CSIDriver{} },
	cycle.CSICapacities:          func() object { return &storagev1.CSIStorageCapacity{} },
	cycle.VolumeAttachments:      func() object { return &storagev1.VolumeAttachment{} },
	cycle.ResourceSlices:         func() object { return &resourcev1.ResourceSlice{} },
	cycle.ResourceClaims:         func() object { return &resourcev1.ResourceClaim{} },
	cycle.DeviceClasses:          func() object { return &resourcev1.DeviceClass{} },
	cycle.DeviceTaintRules:       func() object { return &resourcev1.DeviceTaintRule{} },
	cycle.PodGroups:              func() object { return &groups.PodGroup{} },
	cycle.CompositePodGroups:     func() object { return &groups.CompositePodGroup{} },
	cycle.PriorityClasses:        func() object { return &schedulingv1.PriorityClass{} },
	cycle.MoveLeases:             func() object { return &coordinationv1.Lease{} },
}

// encodeEvent appends an event to b: its type and its content. Ticks and objects make up most of a
// journal, and are encoded compactly; rare events are JSON, which can get new fields. An event of
// an unsupported type is an error, and ends the journal.
func encodeEvent(b []byte, e cycle.Event) ([]byte, error) {
	switch e := e.(type) {
	case cycle.Tick:
		return append(b, typeTick), nil
	case cycle.Led:
		return append(b, typeLed), nil
	case cycle.Listing:
		return records.AppendText(append(b, typeListing), string(e.Kind)), nil
	case cycle.Listed:
		return records.AppendText(append(b, typeListed), string(e.Kind)), nil
	case cycle.Seen:
		return appendObject(append(b, typeSeen), e.Kind, e.Object)
	case cycle.Gone:
		return appendObject(append(b, typeGone), e.Kind, e.Object)
	case cycle.Read:
		return appendObject(append(b, typeRead), cycle.Pods, e.Pod)
	case cycle.Answered:
		b = binary.AppendUvarint(append(b, typeAnswered), uint64(e.Ticket))
		// An empty text stands for success without a result, the outcome of nearly all bindings.
		if e.Outcome.Fault == nil && !e.Outcome.Withdrawn && e.Outcome.Work == nil && e.Outcome.Claims == nil && e.Outcome.Written == nil {
			return records.AppendText(b, ""), nil
		}
		return records.AppendJSON(b, e.Outcome)
	case cycle.Follows:
		return records.AppendJSON(append(b, typeFollows), e)
	case cycle.WallSet:
		return binary.AppendVarint(append(b, typeWallSet), int64(e.Ahead)), nil
	case cycle.Configured:
		return records.AppendText(append(b, typeConfigured), string(e.Source)), nil
	case cycle.Activate:
		return records.AppendJSON(append(b, typeActivate), e)
	case cycle.PermitAllowed:
		return records.AppendJSON(append(b, typePermitAllowed), e)
	case cycle.PermitRejected:
		return records.AppendJSON(append(b, typePermitRejected), e)
	case cycle.ClaimMade:
		return records.AppendJSON(append(b, typeClaimMade), e)
	case cycle.Resumed:
		return records.AppendJSON(append(b, typeResumed), e)
	case cycle.Happened:
		return records.AppendJSON(append(b, typeHappened), happened{e.Event.Resource, e.Event.Action, e.Event.Label})
	}

	return nil, fmt.Errorf("%T cannot be encoded", e)
}

// appendObject appends a kind and an object of it, stripped.
func appendObject(b []byte, kind cycle.Kind, o metav1.Object) ([]byte, error) {
	full, ok := o.(object)
	if !ok {
		return nil, fmt.Errorf("%T cannot be encoded", o)
	}
	bytes, err := stripObject(full).Marshal()
	return records.AppendText(records.AppendText(b, string(kind)), bytes), err
}

// decoder reads the format of encodeEvent.
type decoder struct{ records.Decoder }

// readObject reads the format of appendObject.
func (d *decoder) readObject() (cycle.Kind, object) {
	kind, bytes := cycle.Kind(d.ReadText()), d.ReadText()
	switch make := made[kind]; {
	case d.Err != nil:
	case make == nil:
		d.Err = fmt.Errorf("unknown kind %q", kind)
	default:
		o := make()
		d.Err = o.Unmarshal([]byte(bytes))
		return kind, o
	}
	return kind, nil
}

// readEvent decodes an event. After an error it is nil or incomplete; the caller checks d.Err.
func (d *decoder) readEvent() cycle.Event {
	kind, err := d.ReadByte()
	if err != nil {
		return nil
	}

	switch kind {
	case typeTick:
		return cycle.Tick{}
	case typeLed:
		return cycle.Led{}
	case typeListing:
		return cycle.Listing{Kind: d.readKind()}
	case typeListed:
		return cycle.Listed{Kind: d.readKind()}
	case typeSeen:
		of, o := d.readObject()
		return cycle.Seen{Kind: of, Object: o}
	case typeGone:
		of, o := d.readObject()
		return cycle.Gone{Kind: of, Object: o}
	case typeRead:
		kind, o := d.readObject()
		// The kind is written with the object. In a file not written by a scheduler, the kind may
		// be different.
		pod, ok := o.(*v1.Pod)
		if !ok && d.Err == nil {
			d.Err = fmt.Errorf("one of the %s in place of a pod", kind)
		}
		return cycle.Read{Pod: pod}
	case typeAnswered:
		e := cycle.Answered{Ticket: cycle.Ticket(d.ReadUvarint())}
		d.ReadJSON(&e.Outcome)
		return e
	case typeConfigured:
		e := cycle.Configured{}
		if text := d.ReadText(); text != "" {
			e.Source = []byte(text)
		}
		return e
	}

	return d.readRare(kind)
}

// readJSON reads a value written by AppendJSON.
func readJSON[T any](d *decoder) (value T) {
	d.ReadJSON(&value)
	return value
}

// readRare is readEvent for rare types.
func (d *decoder) readRare(kind byte) cycle.Event {
	switch kind {
	case typeFollows:
		return readJSON[cycle.Follows](d)
	case typeWallSet:
		return cycle.WallSet{Ahead: time.Duration(d.ReadVarint())}
	case typeActivate:
		return readJSON[cycle.Activate](d)
	case typePermitAllowed:
		return readJSON[cycle.PermitAllowed](d)
	case typePermitRejected:
		return readJSON[cycle.PermitRejected](d)
	case typeClaimMade:
		return readJSON[cycle.ClaimMade](d)
	case typeResumed:
		return readJSON[cycle.Resumed](d)
	case typeHappened:
		of := readJSON[happened](d)
		return cycle.Happened{Event: &queue.Event{Resource: of.Resource, Action: of.Action, Label: of.Label}}
	}

	d.Err = fmt.Errorf("unknown type of record %q", kind)
	return nil
}

// readKind reads a kind, and rejects an unknown one: the core lacks a mirror for it.
func (d *decoder) readKind() cycle.Kind {
	kind := cycle.Kind(d.ReadText())
	if d.Err == nil && made[kind] == nil {
		d.Err = fmt.Errorf("unknown kind %q", kind)
	}
	return kind
}

// Reader reads a journal, one record after the other. It is for one goroutine.
type Reader struct {
	*records.Reader
	Header Header
	last   time.Time // time of the last record; each record contains the time since the previous one
}

// NewReader reads the header. It returns records.ErrOther if the file is not a journal of this
// version.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{}
	var err error
	if r.Reader, err = records.NewReader(from, magic, &r.Header); err != nil {
		return nil, err
	}
	r.last = r.Header.Began
	return r, nil
}

// Next returns the next record, or io.EOF at the end. The objects of the event are new, and belong
// to the caller.
func (r *Reader) Next() (Record, error) {
	payload, err := r.Reader.Next()
	if err != nil {
		return Record{}, err
	}
	d := decoder{records.NewDecoder(payload)}
	r.last = r.last.Add(time.Duration(d.ReadVarint()))
	record := Record{At: r.last, Event: d.readEvent()}
	record.Actions = d.ReadText()
	if d.Err != nil {
		return Record{}, r.Wrong(d.Err)
	}
	return record, nil
}
