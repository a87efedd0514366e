"""What a trained agent does: policies, test episodes, journals of them, recordings, exports, diagnosis, the gallery.

Loading a policy imports neither the replay nor the training loop. May import `learning`, `envs`, `media` and below.
"""
