package pulls

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	config "k8s.io/kubelet/config/v1beta1"
)

// Policy says for which images pods need credentials.
type Policy struct {
	// Name is one of the kubelet's; empty: NeverVerifyPreloadedImages.
	Name config.ImagePullCredentialsVerificationPolicy
	// Allowlist is for NeverVerifyAllowlistedImages: names without tag or digest, or prefixes that
	// end in /*.
	Allowlist []string
}

// Policies are the names that a Policy may have.
var Policies = []config.ImagePullCredentialsVerificationPolicy{
	config.NeverVerify, config.NeverVerifyPreloadedImages, config.NeverVerifyAllowlistedImages, config.AlwaysVerify,
}

// Check returns what is wrong with the policy.
func (p Policy) Check() error {
	if p.Name != "" && !slices.Contains(Policies, p.Name) {
		return fmt.Errorf("image pull credentials verification policy %q: must be one of %v", p.Name, Policies)
	}
	if (p.Name == config.NeverVerifyAllowlistedImages) != (len(p.Allowlist) > 0) {
		return fmt.Errorf("a list of preloaded images must be given with the policy %s, and only with it", config.NeverVerifyAllowlistedImages)
	}
	for _, pattern := range p.Allowlist {
		prefix, wild := strings.CutSuffix(pattern, "/*")
		name, err := trimmed(prefix)
		if err != nil || name != prefix || wild && prefix == "" {
			return fmt.Errorf("preloaded image %q: must be an image without tag or digest, or a prefix that ends in /*", pattern)
		}
	}
	return nil
}

// verifies reports whether a pod needs credentials for the image. own: the agent, or a previous
// one, has pulled it.
func (p Policy) verifies(image string, own bool) bool {
	switch p.Name {
	case config.NeverVerify:
		return false
	case config.AlwaysVerify:
		return true
	case config.NeverVerifyAllowlistedImages:
		return !p.allows(image)
	}
	return own
}

func (p Policy) allows(image string) bool {
	name, err := trimmed(image)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(p.Allowlist, func(pattern string) bool {
		if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
			return strings.HasPrefix(name, prefix)
		}
		return name == pattern
	})
}

// trimmed is an image's name without tag and digest.
func trimmed(image string) (string, error) {
	parsed, err := reference.Parse(image)
	if err != nil {
		return "", err
	}
	if digested, ok := parsed.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+digested.Digest().String())
	}
	if tagged, ok := parsed.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+tagged.Tag())
	}
	return image, nil
}
