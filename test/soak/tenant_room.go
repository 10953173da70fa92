// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// tenantPods is the tenant's quota of pods.
const tenantPods = 500

// createObjects creates the namespaces, the tenant's permissions, and the quotas without which
// Kubernetes provides no isolation. They limit the number of pods, and forbid critical priorities
// and affinity across namespaces: a single pod with required anti-affinity to the pods of all
// namespaces would keep all other pods out of its zone.
func (t *tenancy) createObjects(ctx context.Context) error {
	none, errs := metav1.CreateOptions{}, []error{}
	try := func(_ any, err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	core := t.client.CoreV1()
	for _, name := range []string{tenantNamespace, probeNamespace} {
		try(core.Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, none))
	}
	for name, value := range map[string]int32{"tenant-high": 1000, "tenant-low": -10} {
		try(t.client.SchedulingV1().PriorityClasses().Create(ctx,
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, none))
	}
	zero := v1.ResourceList{"pods": resource.MustParse("0")}
	scoped := func(scope v1.ResourceQuotaScope, op v1.ScopeSelectorOperator, values ...string) *v1.ScopeSelector {
		return &v1.ScopeSelector{MatchExpressions: []v1.ScopedResourceSelectorRequirement{{ScopeName: scope, Operator: op, Values: values}}}
	}
	for name, spec := range map[string]v1.ResourceQuotaSpec{
		"pods": {Hard: v1.ResourceList{"pods": resource.MustParse(fmt.Sprint(tenantPods))}},
		"critical": {Hard: zero, ScopeSelector: scoped(v1.ResourceQuotaScopePriorityClass, v1.ScopeSelectorOpIn,
			"system-node-critical", "system-cluster-critical")},
		"across": {Hard: zero, ScopeSelector: scoped(v1.ResourceQuotaScopeCrossNamespacePodAffinity, v1.ScopeSelectorOpExists)},
	} {
		try(core.ResourceQuotas(tenantNamespace).Create(ctx,
			&v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, none))
	}
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: tenantUser}}
	try(t.client.RbacV1().Roles(tenantNamespace).Create(ctx,
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "devices"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims", "resourceclaimtemplates"},
				Verbs: []string{"*"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}}}}, none))
	try(t.client.AppsV1().Deployments(probeNamespace).Create(ctx, shop(), none))
	for name, ref := range map[string]rbacv1.RoleRef{
		"admin":   {APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		"devices": {APIGroup: rbacv1.GroupName, Kind: "Role", Name: "devices"},
	} {
		try(t.client.RbacV1().RoleBindings(tenantNamespace).Create(ctx,
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref, Subjects: subject}, none))
	}
	later := storagev1.VolumeBindingWaitForFirstConsumer
	try(t.client.StorageV1().StorageClasses().Create(ctx,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "csi.example.com",
			VolumeBindingMode: &later}, none))
	t.furnishDevices(ctx, try)
	for range 100 { // service accounts are created a moment after their namespace
		if _, err := core.ServiceAccounts(probeNamespace).Get(ctx, "default", metav1.GetOptions{}); err == nil {
			break
		}
		sleepFor(ctx, 100*time.Millisecond)
	}
	if len(errs) > 0 {
		return fmt.Errorf("furnish: %w", errs[0])
	}
	return nil
}

func (t *tenancy) furnishDevices(ctx context.Context, try func(any, error)) {
	none := metav1.CreateOptions{}
	try(t.client.ResourceV1().DeviceClasses().Create(ctx,
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "tenant-device"}}, none))
	for n := range t.Nodes {
		node := fmt.Sprint("node-", n+1)
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}}}
		for d := range 16 {
			slice.Spec.Devices = append(slice.Spec.Devices,
				resourcev1.Device{Name: fmt.Sprint("d-", d), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"odd": {BoolValue: pointerTo(d%2 == 1)}, "rack": {StringValue: pointerTo(fmt.Sprint(d % 3))}}})
		}
		try(t.client.ResourceV1().ResourceSlices().Create(ctx, slice, none))
	}
}

// evictTenant deletes all of the tenant's objects, and removes their finalizers.
func (t *tenancy) evictTenant(ctx context.Context) error {
	now, all := metav1.DeleteOptions{GracePeriodSeconds: pointerTo(int64(0))}, metav1.ListOptions{}
	steps := []error{
		t.client.AppsV1().ReplicaSets(tenantNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		t.client.CoreV1().Pods(tenantNamespace).DeleteCollection(ctx, now, all),
		t.client.CoreV1().Namespaces().Delete(ctx, tenantNamespace, metav1.DeleteOptions{}),
	}
	for _, err := range steps {
		if err != nil {
			return fmt.Errorf("take the tenant's objects away: %w", err)
		}
	}
	pods, err := t.client.CoreV1().Pods(tenantNamespace).List(ctx, all)
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if len(p.Finalizers) > 0 {
			_, _ = t.client.CoreV1().Pods(tenantNamespace).Patch(ctx, p.Name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}) // the object may have disappeared
		}
	}
	return nil
}
