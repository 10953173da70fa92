package keyring

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// auths are the entries of Docker's configuration files, by registry.
type auths map[string]login

// login is for one registry. Auth, if set, replaces name and password.
type login struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

func (l login) decode() (Login, error) {
	out := Login{Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken}
	if l.Auth == "" {
		return out, nil
	}
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(l.Auth), "=") {
		encoding = base64.StdEncoding
	}
	text, err := encoding.DecodeString(l.Auth)
	if err != nil {
		return Login{}, fmt.Errorf("auth: %w", err)
	}
	name, password, found := strings.Cut(string(text), ":")
	if !found {
		return Login{}, errors.New("auth: must be the base64 of username:password")
	}
	out.Username, out.Password = name, password
	return out, nil
}

// read parses one of Docker's two file formats: config.json, which keeps logins under "auths", and
// .dockercfg, which contains nothing else.
func read(text []byte, old bool) (auths, error) {
	var config struct {
		Auths auths `json:"auths"`
	}
	var into any = &config
	if old {
		into = &config.Auths
	}
	if err := json.Unmarshal(text, into); err != nil {
		// The decoder's message can quote the text, which is secret.
		return nil, errors.New("not a docker configuration in JSON")
	}
	return config.Auths, nil
}

// addAll adds a file's logins; none if one of them cannot be parsed. A registry that is not a URL
// is left out.
func (k *Keyring) addAll(all auths, secret *v1.Secret) error {
	logins := map[string]Login{}
	for registry, l := range all {
		decoded, err := l.decode()
		if err != nil {
			return fmt.Errorf("registry %q: %w", registry, err)
		}
		decoded.Secret = secret
		logins[registry] = decoded
	}
	for _, registry := range slices.Sorted(maps.Keys(logins)) {
		if err := k.add(registry, logins[registry]); err != nil {
			klog.ErrorS(err, "An entry of a docker configuration names no registry; it is left out", "entry", registry)
		}
	}
	return nil
}

// FromSecrets is the keyring of a pod's imagePullSecrets. Secrets of other types are ignored. One
// that cannot be parsed is an error: a pull without it would fail for a misleading reason.
func FromSecrets(secrets []*v1.Secret) (*Keyring, error) {
	k := &Keyring{}
	for _, secret := range secrets {
		key, old := v1.DockerConfigJsonKey, false
		switch secret.Type {
		case v1.SecretTypeDockerConfigJson:
		case v1.SecretTypeDockercfg:
			key, old = v1.DockerConfigKey, true
		default:
			continue
		}
		if len(secret.Data[key]) == 0 {
			continue
		}
		all, err := read(secret.Data[key], old)
		if err == nil {
			err = k.addAll(all, secret)
		}
		if err != nil {
			return nil, fmt.Errorf("image pull secret %s, %s: %w", klog.KObj(secret), key, err)
		}
	}
	return k, nil
}

// Node is the machine's keyring: the first existing config.json in the agent's folder, the working
// directory, ~/.docker and /.docker, otherwise the first .dockercfg in the first two, the home
// directory and /. These are the kubelet's places.
func Node(rootDir, home string) *Keyring {
	type place struct {
		path string
		old  bool
	}
	var places []place
	for _, dir := range []string{rootDir, "", filepath.Join(home, ".docker"), "/.docker"} {
		places = append(places, place{filepath.Join(dir, "config.json"), false})
	}
	for _, dir := range []string{rootDir, "", home, "/"} {
		places = append(places, place{filepath.Join(dir, ".dockercfg"), true})
	}
	for _, p := range places {
		k, err := readFile(p.path, p.old)
		if err == nil {
			return k
		}
		if !os.IsNotExist(err) {
			klog.V(2).InfoS("Cannot read a docker configuration; the next is tried", "file", p.path, "err", err)
		}
	}
	return &Keyring{}
}

func readFile(path string, old bool) (*Keyring, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all, err := read(text, old)
	if err != nil {
		return nil, err
	}
	k := &Keyring{}
	return k, k.addAll(all, nil)
}
