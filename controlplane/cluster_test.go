// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/controlplane"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(300) // most objects allocated by a starting control plane stay alive
	os.Exit(m.Run())
}

// cluster is shared by the behaviour tests, each of which uses a separate namespace.
type cluster struct {
	*controlplane.Cluster
	api kubernetes.Interface
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCluster(t *testing.T) {
	c := &cluster{Cluster: controlplane.Start(t)}
	c.api = clientFor(t, c.Config)
	// Do not wait: Start guarantees that the account exists.
	c.createPod(t, "default", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "first"}})

	t.Run("group", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *cluster){
			"DeploymentScalesUpAndIsCollected":                deploymentScalesUpAndIsCollected,
			"DaemonSetPutsOnePodOnEachNode":                   daemonSetPutsOnePodOnEachNode,
			"StatefulSetMakesOnePodAfterTheOther":             statefulSetMakesOnePodAfterTheOther,
			"JobCompletesAndIsRemovedAfterItsTTL":             jobCompletesAndIsRemovedAfterItsTTL,
			"CronJobIsTaken":                                  cronJobIsTaken,
			"QuotaIsCountedAndEnforced":                       quotaIsCountedAndEnforced,
			"DisruptionBudgetIsCounted":                       disruptionBudgetIsCounted,
			"NamespaceIsDeletedWithWhatIsInIt":                namespaceIsDeletedWithWhatIsInIt,
			"TokensOfServiceAccountsWork":                     tokensOfServiceAccountsWork,
			"ServiceGetsEndpointSlices":                       serviceGetsEndpointSlices,
			"ClaimIsBoundToAVolume":                           claimIsBoundToAVolume,
			"TerminatingPodsWithoutNodeAreCollected":          terminatingPodsWithoutNodeAreCollected,
			"AggregatedClusterRolesAreFilled":                 aggregatedClusterRolesAreFilled,
			"UserWithoutRightsIsRefused":                      userWithoutRightsIsRefused,
			"AnonymousMayAskForHealthOnly":                    anonymousMayAskForHealthOnly,
			"PrivilegedPodIsAccepted":                         privilegedPodIsAccepted,
			"AdmissionFillsIn":                                admissionFillsIn,
			"ComparisonInTolerationsIsAccepted":               comparisonInTolerationsIsAccepted,
			"AllAPIGroupsAreDiscoveredAndAvailable":           allAPIGroupsAreDiscoveredAndAvailable,
			"EvictionAndNodeHealthAreLeftToBerth":             evictionAndNodeHealthAreLeftToBerth,
			"SystemPriorityClassesAndServiceOfTheAPIAreThere": systemObjectsAreThere,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, c)
			})
		}
	})
}

// namespace creates a namespace named after the test.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(t.Name()[strings.LastIndex(t.Name(), "/")+1:])
	_, err := c.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		_, err := c.api.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return name
}

func (c *cluster) createPod(t *testing.T, namespace string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = containers()
	}
	created, err := c.api.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create pod: %v", err)
	}
	return created
}

func containers() []corev1.Container { return []corev1.Container{{Name: "main", Image: "busybox"}} }

// eventually retries until f returns nil.
func eventually(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for complaint := error(nil); ; {
		err := f(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			complaint = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("after %v still: %v", patience, complaint)
		}
	}
}

func tokensOfServiceAccountsWork(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	want := "system:serviceaccount:" + ns + ":default"

	bound, err := c.api.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.expectUser(t, bound.Status.Token, want)

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if _, err := c.api.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		secret, err = c.api.CoreV1().Secrets(ns).Get(ctx, "token", metav1.GetOptions{})
		if err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errorf("no token in the secret")
		}
		return err
	})
	c.expectUser(t, string(secret.Data[corev1.ServiceAccountTokenKey]), want)

	// A projected token is valid only for a pod with these fields.
	pod := c.createPod(t, ns, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}})
	if len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].Projected == nil {
		t.Errorf("no projected token in the pod: %+v", pod.Spec.Volumes)
	}
	eventually(t, func(ctx context.Context) error {
		root, err := c.api.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && root.Data["ca.crt"] != string(c.Config.CAData) {
			err = errorf("kube-root-ca.crt holds another authority")
		}
		return err
	})
}

// expectUser waits until a token authenticates as want. A token in a Secret is not valid
// immediately: the server compares it with a cached Secret, which may briefly predate the token.
func (c *cluster) expectUser(t *testing.T, token, want string) {
	t.Helper()
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token
	eventually(t, func(ctx context.Context) error {
		got, err := whoAmI(ctx, t, config)
		if err == nil && got != want {
			err = errorf("the token is %q's, want %q", got, want)
		}
		return err
	})
}

func userWithoutRightsIsRefused(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	jane := clientFor(t, c.ConfigFor("jane", "developers"))
	if _, err := jane.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("list pods: %v, want forbidden", err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "developers"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "developers"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	if _, err := c.api.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		_, err := jane.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := jane.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets as a viewer: %v, want forbidden", err)
	}
}

func anonymousMayAskForHealthOnly(t *testing.T, c *cluster) {
	client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(c.Config))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/healthz": 200,
		"/version": 401, "/api": 401, "/metrics": 401, "/api/v1/namespaces": 401,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, response.StatusCode, want)
		}
	}
}

func allAPIGroupsAreDiscoveredAndAvailable(t *testing.T, c *cluster) {
	_, lists, err := c.api.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for _, list := range lists {
		groups = append(groups, list.GroupVersion)
	}
	for _, want := range []string{"v1", "apps/v1", "batch/v1", "policy/v1", "resource.k8s.io/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1"} {
		if !slices.Contains(groups, want) {
			t.Errorf("%s is not among %v", want, groups)
		}
	}
	services, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		all, err := services.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, service := range all.Items {
			if !strings.Contains(toJSON(service.Object["status"]), `"reason":"Local","status":"True","type":"Available"`) {
				return errorf("%s: %s", service.GetName(), toJSON(service.Object["status"]))
			}
		}
		return nil
	})
}

func systemObjectsAreThere(t *testing.T, c *cluster) {
	for _, name := range []string{"system-node-critical", "system-cluster-critical"} {
		if _, err := c.api.SchedulingV1().PriorityClasses().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"cluster-admin", "view", "system:kube-scheduler", "system:controller:deployment-controller"} {
		if _, err := c.api.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	eventually(t, func(ctx context.Context) error {
		service, err := c.api.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil && service.Spec.ClusterIP != "10.96.0.1" {
			err = errorf("cluster IP %s", service.Spec.ClusterIP)
		}
		return err
	})
}
