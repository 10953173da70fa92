package keyring

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCases(t *testing.T) {
	var secrets []*v1.Secret
	datadriven.RunTest(t, "testdata/keyring.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "forget":
			secrets = nil
		case "secret":
			var kind string
			d.ScanArgs(t, "type", &kind)
			secret := &v1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("s", len(secrets)+1)}, Type: v1.SecretType(kind),
				Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(d.Input), v1.DockerConfigKey: []byte(d.Input)},
			}
			if _, err := FromSecrets([]*v1.Secret{secret}); err != nil {
				return "error: " + err.Error() + "\n"
			}
			secrets = append(secrets, secret)
		case "for":
			k, err := FromSecrets(secrets)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return text(k.For(d.CmdArgs[0].Key))
		}
		return ""
	})
}

func text(logins []Login) string {
	if len(logins) == 0 {
		return "none\n"
	}
	words := make([]string, len(logins))
	for i, l := range logins {
		words[i] = l.Username + "/" + l.Password
		if l.IdentityToken != "" {
			words[i] += " token " + l.IdentityToken
		}
	}
	return strings.Join(words, ", ") + "\n"
}

// The node's own configuration: the agent's folder before the home directory, the newer file before
// the older.
func TestNodesConfiguration(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	t.Chdir(t.TempDir())
	write := func(path, user string) {
		t.Helper()
		text := fmt.Sprintf(`{"auths": {"r.io": {"username": %q, "password": "x"}}}`, user)
		if filepath.Base(path) == ".dockercfg" {
			text = fmt.Sprintf(`{"r.io": {"username": %q, "password": "x"}}`, user)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if got := text(Node(root, home).For("r.io/a")); got != want+"\n" {
			t.Errorf("%s, want %s", got, want)
		}
	}
	expect("none")
	write(filepath.Join(home, ".dockercfg"), "old")
	expect("old/x")
	write(filepath.Join(home, ".docker", "config.json"), "home")
	expect("home/x")
	write("config.json", "here")
	expect("here/x")
	write(filepath.Join(root, "config.json"), "agent")
	expect("agent/x")
	if err := os.WriteFile(filepath.Join(root, "config.json"), []byte("not JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("here/x") // a file that cannot be read is none
}
