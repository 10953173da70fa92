package controlplane

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/klog/v2"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Upstream makes the default roles and the system's priority classes in two hooks that first sleep
// a second and then make one object after the other. A start of Berth would mostly be that second,
// so here the same objects are made at once and several at a time. (Upstream's hook also moves
// roles of clusters older than any Berth; there are none.) Its name is shown by /readyz while it is
// not done.
const bootstrapHook = "berth/bootstrap-policy"

const (
	bootstrapRetry     = 50 * time.Millisecond // the first time, then twice as long each time
	bootstrapRetryMost = 5 * time.Second
	bootstrapWorkers   = 8
)

// replaceBootstrapHooks puts ours in the place of upstream's; readiness waits for it just the same.
func replaceBootstrapHooks(config *genericapiserver.Config) error {
	config.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName, schedulingrest.PostStartHookName)
	return config.AddPostStartHook(bootstrapHook, func(hook genericapiserver.PostStartHookContext) error {
		client, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
		if err != nil {
			return err
		}
		retryUntilDone(hook, func(ctx context.Context) error { return bootstrapCluster(ctx, client) })
		return nil
	})
}

// retryUntilDone tries until it is done, or the server ends. Upstream gives up after 30 s, and a
// hook that fails ends the process, with the stacks of all its goroutines. With etcd and the
// controllers in the same process, on a busy machine, it may take longer. Until it is done the
// server is not ready, and whoever started it decides for how long that may be. try is called with
// the hook's context, and must end with it.
func retryUntilDone(ctx context.Context, try func(context.Context) error) {
	for pause := bootstrapRetry; ; pause = min(2*pause, bootstrapRetryMost) {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Info("Default roles and priority classes not complete yet", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// bootstrapCluster creates what is missing and adds permissions that are. What an administrator
// added stays. It can be repeated: what is right is not written again.
func bootstrapCluster(ctx context.Context, client kubernetes.Interface) error {
	// The first error ends all: the next try repeats what is missing.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bootstrapWorkers)
	own, err := componentRoles()
	if err != nil {
		return err
	}

	bootstrapClusterRoles(group, client, own)
	bootstrapNamespacedRoles(group, client, own)
	// system-node-critical and system-cluster-critical: admission refuses others of their range.
	for _, class := range schedulingv1.SystemPriorityClasses() {
		group.Go(func() error {
			classes := client.SchedulingV1().PriorityClasses()
			// A class that an administrator has changed stays as it is.
			_, err := classes.Get(ctx, class.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = classes.Create(ctx, class, metav1.CreateOptions{})
			}
			return err
		})
	}

	return group.Wait()
}

// bootstrapClusterRoles makes the cluster roles and what binds them. The components' own roles
// grant what they list and no more, whatever an earlier version granted.
func bootstrapClusterRoles(group *errgroup.Group, client kubernetes.Interface, own roles) {
	// exactly also takes away what the role has beyond the list.
	add := func(all []rbacv1.ClusterRole, exactly bool) {
		for _, role := range all {
			goReconcile(group, &reconciliation.ReconcileRoleOptions{
				Role:                   reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
				Client:                 reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
				Confirm:                true,
				RemoveExtraPermissions: exactly,
			})
		}
	}

	add(slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()), false)
	add(own.cluster, true)
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(),
		bootstrappolicy.ControllerRoleBindings(), identityBindings(), own.clusterBindings) {
		goReconcile(group, &reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding},
			Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()},
			Confirm:     true,
		})
	}
}

// bootstrapNamespacedRoles is the same for the roles and bindings of namespaces.
func bootstrapNamespacedRoles(group *errgroup.Group, client kubernetes.Interface, own roles) {
	add := func(all []rbacv1.Role, exactly bool) {
		for _, role := range all {
			goReconcile(group, &reconciliation.ReconcileRoleOptions{
				Role:                   reconciliation.RoleRuleOwner{Role: &role},
				Client:                 reconciliation.RoleModifier{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()},
				Confirm:                true,
				RemoveExtraPermissions: exactly,
			})
		}
	}

	// Of kube-system and kube-public.
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		add(roles, false)
	}
	add(own.namespaced, true)
	bindings := own.bindings
	for _, upstream := range bootstrappolicy.NamespaceRoleBindings() {
		bindings = append(bindings, upstream...)
	}

	for _, binding := range bindings {
		goReconcile(group, &reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: &binding},
			Client:      reconciliation.RoleBindingClientAdapter{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()},
			Confirm:     true,
		})
	}
}

// goReconcile runs one of the package reconciliation's options. Each costs a read, and a write only
// if something is missing.
func goReconcile[R any](group *errgroup.Group, options interface{ Run() (R, error) }) {
	group.Go(func() error {
		_, err := options.Run()
		return err
	})
}
