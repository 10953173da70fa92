package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// target is what a request is about.
type target struct {
	resource, sub string
	name          types.NamespacedName
}

// parse reads a path such as /api/v1/namespaces/n/pods/p/binding.
func parse(path string) (t target) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[min(3, len(parts)):]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		t.name.Namespace, parts = parts[1], parts[2:]
	}
	for i, field := range []*string{&t.resource, &t.name.Name, &t.sub} {
		if i < len(parts) {
			*field = parts[i]
		}
	}
	return t
}

// RoundTrip carries a request out, unless its Fault prevents that.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	var f Fault
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		f = fault(r)
	}

	if !sleep(r, f.Late) {
		return nil, r.Context().Err()
	}
	switch {
	case f.Lost:
		return nil, errors.New("connection reset by peer")
	case f.Status != 0:
		return failure(r, statusError(f.Status)), nil
	}

	if r.URL.Query().Get("watch") != "" {
		return s.watch(r)
	}
	response := s.answer(r)
	if f.Unanswered {
		return nil, io.ErrUnexpectedEOF
	}
	if !sleep(r, f.Slow) {
		return nil, r.Context().Err()
	}
	return response, nil
}

func sleep(r *http.Request, d time.Duration) bool {
	if d == 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-r.Context().Done():
		return false
	}
}

func statusError(code int) error {
	switch code {
	case http.StatusTooManyRequests:
		return apierrors.NewTooManyRequests("too many requests", 1)
	case http.StatusConflict:
		return apierrors.NewConflict(schema.GroupResource{}, "", errors.New("conflict"))
	case http.StatusGatewayTimeout:
		return apierrors.NewTimeoutError("timed out", 0)
	}
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", http.StatusText(code), 0, false)
}

func failure(r *http.Request, err error) *http.Response {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	return encoded(r, int(st.Code), &st)
}

func encoded(r *http.Request, code int, o any) *http.Response {
	body, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if code == http.StatusTooManyRequests {
		header.Set("Retry-After", "1")
	}
	return &http.Response{
		StatusCode: code, Status: strconv.Itoa(code), Request: r, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func (s *Server) answer(r *http.Request) *http.Response {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		body = asJSON(r.Header.Get("Content-Type"), body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.carryOut(r, parse(r.URL.Path), body)
	if err != nil {
		return failure(r, err)
	}
	return encoded(r, http.StatusOK, o)
}

// asJSON is the object of a request as the server reads it.
func asJSON(contentType string, body []byte) []byte {
	if contentType != runtime.ContentTypeProtobuf {
		return body
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err == nil {
		body, err = json.Marshal(o)
	}
	if err != nil {
		panic(err)
	}
	return body
}

func (s *Server) carryOut(r *http.Request, to target, body []byte) (any, error) {
	if to.resource == "" {
		return &metav1.APIResourceList{}, nil // discovery
	}
	if to.resource == "events" {
		var event v1.Event
		if err := json.Unmarshal(body, &event); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		s.events = append(s.events, &event)
		return &event, nil
	}
	t, ok := s.tables[to.resource]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: to.resource}, to.name.Name)
	}
	if to.sub == "binding" {
		return s.bind(t, body)
	}
	if to.name.Name == "" {
		if r.Method == http.MethodGet {
			return map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": orEmpty(t.sorted()),
				"kind": t.kind.Kind + "List", "apiVersion": t.kind.GroupVersion().String()}, nil
		}
		return s.create(t, body)
	}
	current, ok := t.objects[to.name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: to.resource}, to.name.Name)
	}
	switch r.Method {
	case http.MethodPut:
		return s.update(t, current, to.sub, body)
	case http.MethodPatch:
		return s.patch(t, current, to.sub, body)
	case http.MethodDelete:
		return s.deleted(t, current, body)
	}
	return current, nil
}

func orEmpty(list []Object) []Object {
	if list == nil {
		return []Object{}
	}
	return list
}

func conflict(t *table, o metav1.Object, format string, args ...any) error {
	return apierrors.NewConflict(schema.GroupResource{Group: t.kind.Group, Resource: strings.ToLower(t.kind.Kind)},
		o.GetName(), fmt.Errorf(format, args...))
}

// bind binds a pod. As upstream's registry, it refuses one that has a node, is being deleted, or
// has another UID.
func (s *Server) bind(t *table, body []byte) (any, error) {
	var b v1.Binding
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, err
	}

	current, ok := t.objects[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, b.Name)
	}

	pod := current.(*v1.Pod)
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return nil, conflict(t, pod, "precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.UID)
	case pod.DeletionTimestamp != nil:
		return nil, conflict(t, pod, "pod %v is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return nil, conflict(t, pod, "pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	}

	pod = pod.DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	s.bound = append(s.bound, Bound{nameOf(pod), pod.UID, b.Target.Name})
	s.store(t, pod)
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (s *Server) decode(t *table, body []byte) (Object, error) {
	o, err := scheme.Scheme.New(t.kind)
	if err == nil {
		err = json.Unmarshal(body, o)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o.(Object), nil
}

func (s *Server) create(t *table, body []byte) (any, error) {
	o, err := s.decode(t, body)
	if err != nil {
		return nil, err
	}
	if o.GetName() == "" {
		o.SetName(fmt.Sprintf("%s%d", o.GetGenerateName(), s.version))
	}
	if _, ok := t.objects[nameOf(o)]; ok {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, o.GetName())
	}
	o.SetUID("")
	s.store(t, o)
	return o, nil
}

func (s *Server) update(t *table, current Object, sub string, body []byte) (any, error) {
	o, err := s.decode(t, body)
	if err != nil {
		return nil, err
	}
	if v := o.GetResourceVersion(); v != "" && v != current.GetResourceVersion() {
		return nil, conflict(t, o, "the object has been modified; please apply your changes to the latest version and try again")
	}
	return s.write(t, current, o, sub)
}

// write keeps what the request does not change: the status or, for the status subresource,
// everything else.
func (s *Server) write(t *table, current, o Object, sub string) (any, error) {
	from, into := current, o
	if sub == "status" {
		from, into = o, current.DeepCopyObject().(Object)
	}
	if !copyStatus(from, into) && sub == "status" {
		return nil, apierrors.NewBadRequest("no status")
	}
	into.SetUID(current.GetUID())
	s.store(t, into)
	return into, nil
}

// copyStatus copies the status between objects that have one.
func copyStatus(from, into Object) bool {
	a, err := json.Marshal(from)
	if err != nil {
		return false
	}
	var status struct {
		Status json.RawMessage `json:"status"`
	}
	if json.Unmarshal(a, &status) != nil || status.Status == nil {
		return false
	}
	return replaceStatus(into, status.Status) == nil
}

func replaceStatus(into Object, status json.RawMessage) error {
	whole, err := json.Marshal(into)
	if err != nil {
		return err
	}

	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(whole, &fields); err != nil {
		return err
	}

	fields["status"] = status
	if whole, err = json.Marshal(fields); err != nil {
		return err
	}

	fresh, err := scheme.Scheme.New(into.GetObjectKind().GroupVersionKind())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(whole, fresh); err != nil {
		return err
	}
	return assign(into, fresh.(Object))
}

func (s *Server) patch(t *table, current Object, sub string, body []byte) (any, error) {
	var meta struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &meta); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	if uid := meta.Metadata.UID; uid != "" && uid != current.GetUID() {
		return nil, conflict(t, current, "precondition failed: UID in precondition: %v, UID in object meta: %v", uid, current.GetUID())
	}
	if v := meta.Metadata.ResourceVersion; v != "" && v != current.GetResourceVersion() {
		return nil, conflict(t, current, "the object has been modified")
	}

	before, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}

	example, err := scheme.Scheme.New(t.kind)
	if err != nil {
		return nil, err
	}

	after, err := strategicpatch.StrategicMergePatch(before, body, example)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	o, err := s.decode(t, after)
	if err != nil {
		return nil, err
	}
	return s.write(t, current, o, sub)
}

// deleted removes an object, or marks a running pod for the kubelet to end.
func (s *Server) deleted(t *table, current Object, body []byte) (any, error) {
	var options metav1.DeleteOptions
	_ = json.Unmarshal(body, &options)
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != current.GetUID() {
		return nil, conflict(t, current, "precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, current.GetUID())
	}
	if pod, ok := current.(*v1.Pod); ok && pod.Spec.NodeName != "" && pod.Spec.TerminationGracePeriodSeconds != nil &&
		*pod.Spec.TerminationGracePeriodSeconds > 0 {
		if pod.DeletionTimestamp == nil {
			pod = pod.DeepCopy()
			now := metav1.Now()
			pod.DeletionTimestamp = &now
			s.store(t, pod)
		}
		return pod, nil
	}

	s.remove(t, current)
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}
