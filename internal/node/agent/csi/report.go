package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	// annotation has what each driver calls the node.
	annotation = "csi.volume.kubernetes.io/nodeid"
	// reportAgain is how long to wait after a failed report.
	reportAgain = 5 * time.Second
	// requestMost bounds the requests of a report.
	requestMost = 10 * time.Second
)

// errNoNode: the node has no object in the API yet. Registered wakes the report.
var errNoNode = errors.New("the node is not registered")

// Run keeps what the API has of the drivers up to date until ctx ends.
func (d *Drivers) Run(ctx context.Context) {
	for told := ""; ; {
		err := d.report(ctx)
		var again <-chan time.Time
		if err != nil && !errors.Is(err, errNoNode) {
			again = time.After(reportAgain)
			if ctx.Err() == nil && told != err.Error() {
				klog.ErrorS(err, "Cannot report the CSI drivers of the node; it is tried again")
			}
		}
		told = fmt.Sprint(err)
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-d.changed:
		}
	}
}

// Registered has the drivers reported for a node's object that is new.
func (d *Drivers) Registered() { d.wake() }

// report writes the labels and the annotation of the node, and its CSINode object.
func (d *Drivers) report(ctx context.Context) error {
	d.reporting.Lock()
	defer d.reporting.Unlock()
	uid := string(d.node().UID)
	d.mu.Lock()
	drivers, gone, done := maps.Clone(d.drivers), maps.Clone(d.gone), d.reported == uid
	d.mu.Unlock()
	if done || len(drivers)+len(gone) == 0 {
		return nil
	}
	if uid == "" {
		return errNoNode
	}
	ctx, cancel := context.WithTimeout(ctx, requestMost)
	defer cancel()
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.node().Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	collided := leaveOut(node.Labels, drivers)
	if err := d.reportNode(ctx, node, drivers, gone); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	if err := d.reportCSINode(ctx, node, drivers, gone); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	if collided != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", collided)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range gone {
		if _, back := d.drivers[name]; !back {
			delete(d.gone, name)
		}
	}
	if maps.EqualFunc(drivers, d.drivers, driver.same) && len(d.gone) == 0 {
		d.reported = string(node.UID)
	}
	return nil
}

// leaveOut removes the drivers whose labels the node has with other values, or another driver: what
// the API has of them stays, and the others are reported. The error is about one of them.
func leaveOut(labels map[string]string, drivers map[string]driver) (collided error) {
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		topology := drivers[name].info.topology
		err := collision(labels, topology)
		if err == nil {
			err = collision(taken, topology)
		}
		if err == nil {
			maps.Copy(taken, topology)
			continue
		}
		delete(drivers, name)
		collided = &refusedError{name, err}
	}
	return collided
}

// reportNode adds the drivers' labels to the node, and what they call it.
func (d *Drivers) reportNode(ctx context.Context, node *v1.Node, drivers map[string]driver, gone map[string]bool) error {
	ids := map[string]string{}
	if text := node.Annotations[annotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			klog.ErrorS(err, "The node's annotation is not understood, and is written anew", "annotation", annotation, "value", text)
			ids = map[string]string{}
		}
	}
	maps.DeleteFunc(ids, func(name, _ string) bool { return gone[name] })
	labels := map[string]string{}
	for name, driver := range drivers {
		ids[name] = driver.info.id
		for key, value := range driver.info.topology {
			if node.Labels[key] != value {
				labels[key] = value
			}
		}
	}
	var value any // nil removes it
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		value = string(text)
	}
	if now, there := node.Annotations[annotation]; len(labels) == 0 && (there && now == value || !there && value == nil) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "labels": labels, "annotations": map[string]any{annotation: value},
	}})
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// reportCSINode writes the node's CSINode object, which belongs to the node's object.
func (d *Drivers) reportCSINode(ctx context.Context, node *v1.Node, drivers map[string]driver, gone map[string]bool) error {
	api := d.client.StorageV1().CSINodes()
	have, err := api.Get(ctx, node.Name, metav1.GetOptions{})
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	if err == nil && !slices.ContainsFunc(have.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == owner.Kind && o.UID == owner.UID }) {
		// It is of another node of this name.
		if err := api.Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		err = apierrors.NewNotFound(storagev1.Resource("csinodes"), node.Name)
	}
	if apierrors.IsNotFound(err) {
		if len(drivers) == 0 {
			return nil
		}
		have, err = api.Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{owner}}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	want := have.DeepCopy()
	changed := false
	want.Spec.Drivers = slices.DeleteFunc(want.Spec.Drivers, func(entry storagev1.CSINodeDriver) bool {
		driver, there := drivers[entry.Name]
		differs := there && !apiequality.Semantic.DeepEqual(entry, entryOf(entry.Name, driver.info))
		changed = changed || differs
		return gone[entry.Name] && !there || differs
	})
	if changed { // entries cannot be changed, only removed and added
		if have, err = api.Update(ctx, want, metav1.UpdateOptions{}); err != nil {
			return err
		}
		want = have.DeepCopy()
	}
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		if !slices.ContainsFunc(want.Spec.Drivers, func(entry storagev1.CSINodeDriver) bool { return entry.Name == name }) {
			want.Spec.Drivers = append(want.Spec.Drivers, entryOf(name, drivers[name].info))
		}
	}
	if apiequality.Semantic.DeepEqual(have.Spec, want.Spec) {
		return nil
	}
	_, err = api.Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// entryOf is the entry of a driver in a CSINode.
func entryOf(name string, said info) storagev1.CSINodeDriver {
	entry := storagev1.CSINodeDriver{Name: name, NodeID: said.id, TopologyKeys: slices.Sorted(maps.Keys(said.topology))}
	if said.most > 0 {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(said.most, math.MaxInt32)))}
	}
	return entry
}

// refusedError is one of a driver that does not pass.
type refusedError struct {
	driver string
	error
}

func (e *refusedError) Unwrap() error { return e.error }

// isFinal reports whether a report failed because of what a driver says.
func isFinal(err error, driver string) bool {
	var refused *refusedError
	return errors.As(err, &refused) && refused.driver == driver || apierrors.IsInvalid(err) || apierrors.IsForbidden(err)
}
