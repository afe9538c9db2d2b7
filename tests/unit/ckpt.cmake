# Checkpoints on disk: manifest, and the commands of `ddprun ckpt`.
ddprun_test(NAME checkpoint_manifest_test LABEL unit SOURCES unit/checkpoint_manifest_test.cc LIBS ddprun_checkpoint)
