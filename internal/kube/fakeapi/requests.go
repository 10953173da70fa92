package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// target is what a request is about.
type target struct {
	version, resource, sub string
	name                   types.NamespacedName
}

// parsePath reads a path such as /api/v1/namespaces/n/pods/p/binding.
func parsePath(path string) (t target) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	upTo := min(3, len(parts))
	if parts[0] == "api" {
		upTo = min(2, len(parts))
	}
	t.version, parts = strings.Join(parts[1:upTo], "/"), parts[upTo:]
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

	if !sleepFor(r, f.Late) {
		return nil, r.Context().Err()
	}
	switch {
	case f.Lost:
		return nil, errors.New("connection reset by peer")
	case f.Status != 0:
		return failureResponse(r, statusError(f.Status)), nil
	}

	if r.URL.Query().Get("watch") != "" {
		return s.startWatch(r)
	}
	response := s.answerRequest(r)
	if f.Unanswered {
		return nil, io.ErrUnexpectedEOF
	}
	if !sleepFor(r, f.Slow) {
		return nil, r.Context().Err()
	}
	return response, nil
}

func sleepFor(r *http.Request, d time.Duration) bool {
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

func failureResponse(r *http.Request, err error) *http.Response {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	st.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return encodeResponse(r, int(st.Code), &st)
}

func encodeResponse(r *http.Request, code int, o any) *http.Response {
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

func (s *Server) answerRequest(r *http.Request) *http.Response {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		body = asJSON(r.Header.Get("Content-Type"), body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.carryOut(r, parsePath(r.URL.Path), body)
	if err != nil {
		return failureResponse(r, err)
	}
	return encodeResponse(r, http.StatusOK, o)
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
		return discover(to.version), nil
	}

	// Events are kept, and never shown: no watch follows them.
	if to.resource == "events" && r.Method != http.MethodGet {
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
		return s.bindPod(t, body)
	}
	if to.name.Name == "" {
		if r.Method == http.MethodGet {
			return s.listPage(t, r.URL.Query())
		}
		return s.createObject(t, body)
	}

	current, ok := t.objects[to.name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: to.resource}, to.name.Name)
	}
	switch r.Method {
	case http.MethodPost:
		return s.evictPod(t, current, body)
	case http.MethodPut:
		return s.updateObject(t, current, to.sub, body)
	case http.MethodPatch:
		return s.patchObject(t, current, to.sub, body)
	case http.MethodDelete:
		return s.deleteObject(t, current, body)
	}
	return current, nil
}

func discover(version string) *metav1.APIResourceList {
	list := &metav1.APIResourceList{GroupVersion: version}
	list.Kind = "APIResourceList"
	for resource, kind := range kinds[version] {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Kind: kind})
	}
	return list
}

// listPage lists a table, or a page of it. All pages of a list show the table as it was at the
// first one, and have its version: a watch from there misses nothing that was stored in between.
func (s *Server) listPage(t *table, query url.Values) (any, error) {
	version, from, all := s.version, 0, []Object(nil)
	if token := query.Get("continue"); token != "" {
		_, _ = fmt.Sscanf(token, "%d-%d", &version, &from)
		if all = t.lists[version]; from >= len(all) {
			return nil, apierrors.NewResourceExpired("the provided continue parameter is too old")
		}
	} else {
		all = t.sortedObjects()
	}

	limit, _ := strconv.Atoi(query.Get("limit"))
	if s.PageLimit > 0 && (limit == 0 || limit > s.PageLimit) {
		limit = s.PageLimit
	}
	page := append([]Object{}, all[from:]...)
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if limit > 0 && len(page) > limit {
		page = page[:limit]
		meta["continue"] = fmt.Sprintf("%d-%d", version, from+limit)
		t.keepList(version, all)
	}
	return map[string]any{"metadata": meta, "items": page, "kind": t.kind.Kind + "List", "apiVersion": t.kind.GroupVersion().String()}, nil
}

// keepList keeps what a list showed for its next pages; of lists that were begun the last ones
// only.
func (t *table) keepList(version int, all []Object) {
	const most = 16
	t.lists[version] = all
	if len(t.lists) > most {
		delete(t.lists, slices.Min(slices.Collect(maps.Keys(t.lists))))
	}
}

func conflictError(t *table, o metav1.Object, format string, args ...any) error {
	return apierrors.NewConflict(schema.GroupResource{Group: t.kind.Group, Resource: strings.ToLower(t.kind.Kind)},
		o.GetName(), fmt.Errorf(format, args...))
}

// bindPod binds a pod. As upstream's registry, it refuses one that has a node, is being deleted, or
// has another UID.
func (s *Server) bindPod(t *table, body []byte) (any, error) {
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
		return nil, conflictError(t, pod, "precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.UID)
	case pod.DeletionTimestamp != nil:
		return nil, conflictError(t, pod, "pod %v is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return nil, conflictError(t, pod, "pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	}

	pod = pod.DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	s.bound = append(s.bound, Bound{nameOf(pod), pod.UID, b.Target.Name})
	s.storeObject(t, pod)
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (s *Server) decodeObject(t *table, body []byte) (Object, error) {
	o, err := scheme.Scheme.New(t.kind)
	if err == nil {
		err = json.Unmarshal(body, o)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o.(Object), nil
}

func (s *Server) createObject(t *table, body []byte) (any, error) {
	o, err := s.decodeObject(t, body)
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
	s.storeObject(t, o)
	return o, nil
}

func (s *Server) updateObject(t *table, current Object, sub string, body []byte) (any, error) {
	o, err := s.decodeObject(t, body)
	if err != nil {
		return nil, err
	}
	if v := o.GetResourceVersion(); v != "" && v != current.GetResourceVersion() {
		return nil, conflictError(t, o, "the object has been modified; please apply your changes to the latest version and try again")
	}
	return s.writeObject(t, current, o, sub)
}

// writeObject keeps what the request does not change: the status or, for the status subresource,
// everything else.
func (s *Server) writeObject(t *table, current, o Object, sub string) (any, error) {
	from, into := current, o
	if sub == "status" {
		from, into = o, current.DeepCopyObject().(Object)
	}
	if !copyStatus(from, into) && sub == "status" {
		return nil, apierrors.NewBadRequest("no status")
	}
	into.SetUID(current.GetUID())
	s.storeObject(t, into)
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
	return copyInto(into, fresh.(Object))
}

func (s *Server) patchObject(t *table, current Object, sub string, body []byte) (any, error) {
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
		return nil, conflictError(t, current, "precondition failed: UID in precondition: %v, UID in object meta: %v", uid, current.GetUID())
	}
	if v := meta.Metadata.ResourceVersion; v != "" && v != current.GetResourceVersion() {
		return nil, conflictError(t, current, "the object has been modified")
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

	o, err := s.decodeObject(t, after)
	if err != nil {
		return nil, err
	}
	return s.writeObject(t, current, o, sub)
}

// evictPod deletes a pod unless a budget's status forbids it, which every eviction counts against.
func (s *Server) evictPod(t *table, current Object, body []byte) (any, error) {
	var eviction policyv1.Eviction
	if err := json.Unmarshal(body, &eviction); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}

	// Each budget that covers the pod is charged before the pod goes, as the API server does: if it
	// is refused by the last of them, those before it are short of one until they are counted
	// again.
	for _, o := range s.tables["poddisruptionbudgets"].sortedObjects() {
		budget := o.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || budget.Namespace != current.GetNamespace() || !selector.Matches(labels.Set(current.GetLabels())) {
			continue
		}
		if budget.Status.DisruptionsAllowed <= 0 {
			return nil, apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		}
		budget.Status.DisruptionsAllowed--
		s.storeObject(s.tables["poddisruptionbudgets"], budget)
	}

	options, err := json.Marshal(eviction.DeleteOptions)
	if err != nil {
		return nil, err
	}
	return s.deleteObject(t, current, options)
}

// deleteObject removes an object, or marks a running pod for the kubelet to end.
func (s *Server) deleteObject(t *table, current Object, body []byte) (any, error) {
	var options metav1.DeleteOptions
	_ = json.Unmarshal(body, &options)
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != current.GetUID() {
		return nil, conflictError(t, current, "precondition failed: UID in precondition: %v, UID in object meta: %v",
			*p.UID, current.GetUID())
	}
	if pod, ok := current.(*v1.Pod); ok && pod.Spec.NodeName != "" && pod.Spec.TerminationGracePeriodSeconds != nil &&
		*pod.Spec.TerminationGracePeriodSeconds > 0 {
		if pod.DeletionTimestamp == nil {
			pod = pod.DeepCopy()
			now := metav1.Now()
			pod.DeletionTimestamp = &now
			s.storeObject(t, pod)
		}
		return pod, nil
	}

	s.removeObject(t, current)
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}
