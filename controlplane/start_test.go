// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/controlplane"
)

func in(dataDir string) func(*controlplane.Options) {
	return func(o *controlplane.Options) { o.DataDir = dataDir }
}

func TestStartedAgainInOneProcessItGoesOn(t *testing.T) {
	dir := t.TempDir()
	var left []int
	for i := range 3 {
		c := controlplane.Start(t, in(dir))
		maps := clientFor(t, c.Config).CoreV1().ConfigMaps("default")
		if i == 0 {
			if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := maps.Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
			t.Fatalf("start %d: %v", i+1, err)
		}
		c.Stop()
		if conn, err := net.Dial("tcp", strings.TrimPrefix(c.Config.Host, "https://")); err == nil {
			conn.Close()
			t.Errorf("start %d: still listens after Stop", i+1)
		}
		left = append(left, settledGoroutines())
	}
	t.Logf("goroutines left after each stop: %v", left)
	// A running control plane has 3,000 goroutines; upstream leaks a few dozen.
	if grown := left[2] - left[1]; grown > 200 {
		t.Errorf("each start leaves %d goroutines behind", grown)
	}
}

// settledGoroutines returns the number of goroutines once it stops falling.
func settledGoroutines() int {
	const still = 300 * time.Millisecond
	count, since := runtime.NumGoroutine(), time.Now()
	for tick := range time.Tick(20 * time.Millisecond) {
		if now := runtime.NumGoroutine(); now < count {
			count, since = now, tick
		}
		if tick.Sub(since) > still {
			break
		}
	}
	return count
}

func TestTwoRunBesideEachOther(t *testing.T) {
	one, two := controlplane.Start(t), controlplane.Start(t)
	if _, err := clientFor(t, one.Config).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "only-in-one"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	spaces, err := clientFor(t, two.Config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, space := range spaces.Items {
		if space.Name == "only-in-one" {
			t.Error("they share state")
		}
	}
	one.Stop()
	if _, err := clientFor(t, two.Config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the second does not survive the end of the first: %v", err)
	}
}

func TestKubeconfigsLeadInAsTheirUser(t *testing.T) {
	c := controlplane.Start(t)
	for path, want := range map[string]string{c.Kubeconfig: "berth-admin", c.KubeconfigFor("jane", "developers"): "jane"} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", path, info, err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := whoAmI(t.Context(), t, config); got != want || err != nil {
			t.Errorf("%s is %s's, want %s (%v)", path, got, want, err)
		}
	}
}

func whoAmI(ctx context.Context, t *testing.T, config *rest.Config) (string, error) {
	t.Helper()
	review, err := clientFor(t, config).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// fakeT records the failures that Start reports to a test.
type fakeT struct {
	*testing.T
	failure string
}

func (f *fakeT) Fatalf(format string, args ...any) { f.failure = errorf(format, args...).Error() }

func TestFailedStartFailsTheTestWithTheReason(t *testing.T) {
	dir := t.TempDir()
	c := controlplane.Start(t, in(dir))
	f := &fakeT{T: t}
	controlplane.Start(f, in(dir))
	if !strings.Contains(f.failure, "in use by process") {
		t.Errorf("second start on the same directory: %q", f.failure)
	}
	f = &fakeT{T: t}
	controlplane.Start(f, func(o *controlplane.Options) {
		o.FeatureGates = map[string]bool{"TaintTolerationComparisonOperators": false}
	})
	if !strings.Contains(f.failure, "another control plane in this process runs with") {
		t.Errorf("other feature gates beside a running one: %q", f.failure)
	}
	c.Stop()
}
