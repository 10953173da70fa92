// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// lying writes a kubeconfig like that of berth up, with the given cluster and user.
func lying(t *testing.T, dir, cluster, user string) string {
	t.Helper()
	path := filepath.Join(dir, "kubeconfig")
	content := fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: berth, cluster: %s}]
users: [{name: berth, user: %s}]
contexts: [{name: berth, context: {cluster: berth, user: berth}}]
current-context: berth
`, cluster, user)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAKubeconfigThatIsOnlyFoundIsNotTrustedWithMoreThanBerthUpWrites(t *testing.T) {
	const server = "https://127.0.0.1:6443"
	const here = `{server: "` + server + `"}`
	for _, c := range []struct{ name, cluster, user, want string }{
		{"berth up's", here, "{token: x}", ""},
		{"exec", here, "{exec: {apiVersion: client.authentication.k8s.io/v1, command: evil, interactiveMode: Never}}", `user "berth" runs a program (exec: evil)`},
		{"auth-provider", here, "{auth-provider: {name: evil}}", "auth-provider"},
		{"a file as token", here, "{tokenFile: /etc/hostname}", "names a file"},
		{"a file as key", here, "{client-certificate: /a, client-key: /b}", "names a file"},
		{"another machine", `{server: "https://10.1.2.3:6443"}`, "{token: x}", "is not on this machine"},
		{"another machine by name", `{server: "https://api.example.com"}`, "{token: x}", "is not on this machine"},
		{"by way of another machine", `{server: "` + server + `", proxy-url: "http://10.1.2.3:3128"}`, "{token: x}", "is not on this machine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := lying(t, dir, c.cluster, c.user)
			t.Setenv("KUBECONFIG", "")
			t.Setenv(EnvDataDir, dir)
			config, err := (&Flags{}).Config("test")
			if c.want == "" {
				if err != nil || config.Host != server {
					t.Errorf("%v, %v", config, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q in one line with the path", err, c.want)
			}
			// A file named by the user is trusted.
			if _, err := (&Flags{Kubeconfig: path}).Config("test"); err != nil && strings.Contains(err.Error(), "trusted") {
				t.Errorf("named by --kubeconfig: %v", err)
			}
		})
	}
}

// kept is a kubeconfig of berth up with the user's additions: a remote cluster, and a user that
// runs a program.
const kept = `{apiVersion: v1, kind: Config, current-context: %s,
clusters: [{name: berth, cluster: {server: "https://127.0.0.1:6443"}}, {name: far, cluster: {server: "https://10.1.2.3:6443"}}],
users: [{name: u, user: {token: x}}, {name: exec, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never}}}],
contexts: [{name: berth, context: {cluster: berth, user: u}}, {name: prod, context: {cluster: far, user: u}}, {name: run, context: {cluster: berth, user: exec}}]}`

// TestOnlyTheContextThatIsUsedOfAFoundKubeconfigHasToBeHarmless verifies that contexts that the
// user added to the kubeconfig of berth up do not prevent the use of berth up's context, but are
// refused themselves, unless the user names the file.
func TestOnlyTheContextThatIsUsedOfAFoundKubeconfigHasToBeHarmless(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	t.Setenv("KUBECONFIG", "")
	t.Setenv(EnvDataDir, dir)
	const away, runs = `cluster "far" is not on this machine`, `user "exec" runs a program`
	for _, c := range []struct{ current, named, want string }{
		{"berth", "", ""}, {"berth", "berth", ""}, {"prod", "berth", ""},
		{"berth", "prod", away}, {"prod", "", away}, {"berth", "run", runs}, {"run", "", runs},
	} {
		if err := os.WriteFile(path, fmt.Appendf(nil, kept, c.current), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := (&Flags{Context: c.named}).Config("test")
		if c.want == "" && (err != nil || config.Host != "https://127.0.0.1:6443") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("current %s, --context %q: %+v, %v, want %q", c.current, c.named, config, err, c.want)
		}
		if _, err := Found(dir, AnyContext); err == nil {
			t.Errorf("current %s: every context is trusted", c.current)
		}
		if config, err := (&Flags{Kubeconfig: path, Context: "prod"}).Config("test"); err != nil || config.Host != "https://10.1.2.3:6443" {
			t.Errorf("--kubeconfig --context prod: %+v, %v", config, err)
		}
	}
}

// TestNamespaceAndContextsAreOfTheClusterThatIsAsked verifies that the namespace and the contexts
// are taken from the kubeconfig that Config uses, and not from the user's own kubeconfig if berth
// up's is found.
func TestNamespaceAndContextsAreOfTheClusterThatIsAsked(t *testing.T) {
	home := filepath.Join(t.TempDir(), "config")
	text := `{apiVersion: v1, kind: Config, current-context: work, clusters: [{name: c, cluster: {server: "https://work:6443"}}],
users: [{name: u, user: {}}], contexts: [{name: work, context: {cluster: c, user: u, namespace: payments}}]}`
	if err := os.WriteFile(home, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	usual := clientcmd.RecommendedHomeFile
	clientcmd.RecommendedHomeFile = home
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = usual })
	dir := t.TempDir()
	lying(t, dir, `{server: "https://127.0.0.1:6443"}`, "{token: x}")
	t.Setenv("KUBECONFIG", "")
	t.Setenv(EnvDataDir, dir)
	own := &Flags{}
	if got, contexts := own.Namespace(), own.Contexts(); got != "default" || !slices.Equal(contexts, []string{"berth"}) {
		t.Errorf("of berth up: namespace %s, contexts %v", got, contexts)
	}
	t.Setenv(EnvDataDir, t.TempDir())
	if got, contexts := own.Namespace(), own.Contexts(); got != "payments" || !slices.Equal(contexts, []string{"work"}) {
		t.Errorf("of the user: namespace %s, contexts %v", got, contexts)
	}
	named := &Flags{Kubeconfig: home}
	if got := named.Namespace(); got != "payments" {
		t.Errorf("of --kubeconfig: namespace %s", got)
	}
}

func TestAKubeconfigThatOthersCanReachIsNotTrusted(t *testing.T) {
	dir := t.TempDir()
	path := lying(t, dir, `{server: "https://127.0.0.1:6443"}`, "{token: x}")
	for _, c := range []struct{ dir, file os.FileMode }{{0o777, 0o600}, {0o770, 0o600}, {0o700, 0o644}, {0o700, 0o660}} {
		if err := os.Chmod(dir, c.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.file); err != nil {
			t.Fatal(err)
		}
		if _, err := Found(dir, ""); err == nil || !strings.Contains(err.Error(), "gives others access (chmod 0") {
			t.Errorf("%o %o: %v", c.dir, c.file, err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := Found(dir, ""); err != nil || found != path {
		t.Errorf("%q, %v", found, err)
	}
	if found, err := Found(filepath.Join(dir, "none"), ""); err != nil || found != "" {
		t.Errorf("none: %q, %v", found, err)
	}
}

// TestAFIFOIsNotWaitedFor verifies that Found returns an error if the kubeconfig is a FIFO, instead
// of waiting for a writer.
func TestAFIFOIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := Found(dir, "")
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("found: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still waiting for the FIFO after a minute")
	}
}
